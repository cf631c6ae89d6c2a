import re
import sys
from dataclasses import dataclass, field
from math import exp, sqrt

from inferlet_sdk import Context, Sampler, inferlet

GOAL, LONGEST = 24, 100
STEP = re.compile(r"(\d+)([-+*/])(\d+)=(\d+)( left [\d,]+)?")


@dataclass
class Node:
    """What is left of the numbers, the steps so far, and what the search has found out."""

    left: tuple[int, ...]
    steps: tuple[str, ...] = ()
    proposed: int = 0
    """How often the model wrote the step to this node: its prior."""
    visits: int = 0
    value: float = 0.0
    """The sum over the visits of how sure the model was of its right steps."""
    children: dict[tuple[int, ...], "Node"] = field(default_factory=dict)


@inferlet
async def main(args, numbers: str = "4,7,8,8", rounds: int = 60, tries: int = 3, seed: int = 1):
    """Makes 24 of four numbers by Monte Carlo tree search: a round goes down to a leaf, whose next steps the model
    proposes, and tells all nodes on the way how sure the model was. What leads to nothing new is not visited again."""
    if len(numbers) > LONGEST or min(rounds, tries) < 1:
        sys.exit(f"give numbers in {LONGEST} characters at most, and rounds and tries of 1 or more")
    given = sorted(map(int, re.findall(r"\d+", numbers)))
    if len(given) < 2:
        sys.exit(f"numbers: give two or more, such as 4,7,8,8, not {numbers!r}")
    root, dead, tokens = Node(tuple(given)), set(), 0
    for number in range(rounds):
        path = [root]
        while living := [child for child in path[-1].children.values() if child.left not in dead]:
            path.append(best(path[-1], living))
        asked = f"Make {GOAL}: {','.join(map(str, path[-1].left))}"
        async with Context(args.model).fill_chat("user", asked) as ctx:
            lines = await ctx.best_of(tries, 24, sampler=Sampler(seed=seed + tries * number), stop="\n")
        tokens += sum(len(line.tokens) + 1 for line in lines)
        found = [(node, exp(line.score)) for line in lines if (node := take(path[-1], line.text))]
        for node, _ in found:
            if node.left == (GOAL,):
                await args.send("\n".join(node.steps) + "\n")
                return {"solved": True, "tokens": tokens}
        going_on = [(node, sure) for node, sure in found if len(node.left) > 1 and node.left not in dead]
        if all(node.left in path[-1].children for node, _ in going_on):
            dead.add(path[-1].left)
        for node, _ in going_on:
            path[-1].children.setdefault(node.left, node).proposed += 1
        for node in path:
            node.visits += 1
            node.value += sum(sure for _, sure in going_on) / tries
    await args.send(f"No steps to {GOAL} were found in {rounds} rounds: give more rounds, or other numbers.\n")
    return {"solved": False, "tokens": tokens}


def best(parent: Node, living: list[Node]) -> Node:
    """The child with the highest bound (PUCT)."""
    total = sum(child.proposed for child in living)

    def bound(child: Node) -> float:
        explore = child.proposed / total * sqrt(parent.visits) / (1 + child.visits)
        return child.value / max(child.visits, 1) + explore

    return max(living, key=bound)


def take(node: Node, line: str) -> Node | None:
    """The node behind a step, if that is right."""
    if (match := STEP.match(line)) is None:
        return None
    one, operator, other, result = int(match[1]), match[2], int(match[3]), int(match[4])
    rest = list(node.left)
    for number in (one, other):
        if number not in rest:
            return None
        rest.remove(number)
    right = {"+": one + other, "-": one - other, "*": one * other, "/": one / other if other else None}[operator]
    return Node(tuple(sorted((*rest, result))), (*node.steps, match[0].split(" ")[0])) if result == right else None
