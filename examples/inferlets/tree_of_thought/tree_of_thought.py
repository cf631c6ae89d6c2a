import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from inferlet_sdk import Context, Sampler, gather, inferlet

GOAL, LONGEST = 24, 100
STEP = re.compile(r"(\d+)([-+*/])(\d+)=(\d+)( left [\d,]+)?")


@dataclass(frozen=True)
class Node:
    """What is left of the numbers, the steps so far, and how likely the model finds them."""

    left: tuple[int, ...]
    steps: tuple[str, ...] = ()
    score: float = 0.0


@inferlet
async def main(args, numbers: str = "4,7,8,8", tries: int = 3, width: int = 4, rounds: int = 8, seed: int = 1):
    """Makes 24 of four numbers (tree of thought): the model proposes steps, the program does the arithmetic, and goes
    on with the most likely of those that are right; again with other proposals, if none of them leads to 24."""
    if len(numbers) > LONGEST or min(tries, width, rounds) < 1:
        sys.exit(f"give numbers in {LONGEST} characters at most, and tries, a width and rounds of 1 or more")
    given = sorted(map(int, re.findall(r"\d+", numbers)))
    if len(given) < 2:
        sys.exit(f"numbers: give two or more, such as 4,7,8,8, not {numbers!r}")
    root, tokens = Node(tuple(given)), 0
    seen: set[tuple[int, ...]] = set()
    for number in range(rounds):
        level = [root]
        while level and len(level[0].left) > 1:
            found = await gather(*(propose(args.model, node, tries, seed + tries * number) for node in level))
            tokens += sum(written for _, written in found)
            best: dict[tuple[int, ...], Node] = {}
            for node in sorted((node for nodes, _ in found for node in nodes), key=lambda one: -one.score):
                if node.left not in seen and (len(node.left) > 1 or node.left == (GOAL,)):
                    best.setdefault(node.left, node)
            level = list(best.values())[:width]
            seen.update(node.left for node in level if len(node.left) == 2)
        if level:
            await args.send("\n".join(level[0].steps) + "\n")
            return {"solved": True, "tokens": tokens}
    await args.send(f"No steps to {GOAL} were found in {rounds} rounds: give more rounds, or other numbers.\n")
    return {"solved": False, "tokens": tokens}


async def propose(model: str, node: Node, tries: int, seed: int) -> tuple[list[Node], int]:
    """The nodes behind one, as far as the model's steps are right, and how many tokens it wrote."""
    asked = ",".join(map(str, node.left))
    async with Context(model).fill_chat("user", f"Make {GOAL}: {asked}") as ctx:
        lines = await ctx.best_of(tries, 24, sampler=Sampler(seed=seed), stop="\n")
    nodes: Iterator[Node | None] = (take(node, line.text, line.score) for line in lines)
    return [one for one in nodes if one is not None], sum(len(line.tokens) + 1 for line in lines)


def take(node: Node, line: str, score: float) -> Node | None:
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
    if result != right:
        return None
    return Node(tuple(sorted((*rest, result))), (*node.steps, match[0].split(" ")[0]), node.score + score)
