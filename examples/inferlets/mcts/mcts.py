import re
from dataclasses import dataclass, field
from math import sqrt

from inferlet_sdk import Context, Sampler, inferlet

GOAL = 24
STEP = re.compile(r"(\d+)([-+*/])(\d+)=(\d+)")


@dataclass
class Node:
    """What is left of the numbers, the steps so far, and what the search has found out."""

    left: tuple[int, ...]
    steps: tuple[str, ...] = ()
    proposed: int = 0
    """How often the model wrote the step to this node: its prior."""
    visits: int = 0
    reward: float = 0.0
    children: dict[tuple[int, ...], "Node"] = field(default_factory=dict)

    def best_child(self) -> "Node":
        """That with the highest bound (PUCT)."""
        total = sum(child.proposed for child in self.children.values())

        def bound(child: Node) -> float:
            explore = child.proposed / total * sqrt(self.visits) / (1 + child.visits)
            return child.reward / max(child.visits, 1) + explore

        return max(self.children.values(), key=bound)


@inferlet
async def main(args, numbers: str = "4,7,8,8", rounds: int = 12, samples: int = 4, seed: int = 1):
    """Makes 24 of four numbers by Monte Carlo tree search: what the model writes on from a node are its roll-outs, and
    their first steps its children."""
    root, tokens = Node(tuple(sorted(int(number) for number in numbers.split(",")))), 0
    for number in range(rounds):
        path = [root]
        while path[-1].children:
            path.append(path[-1].best_child())
        asked = f"Make {GOAL}: {','.join(map(str, path[-1].left))}"
        async with Context(args.model).fill_chat("user", asked) as ctx:
            sampler = Sampler(seed=seed + samples * number)
            texts = await ctx.best_of(samples, 64, sampler=sampler, score=lambda _: 0)
        tokens += sum(len(text.tokens) for text in texts)
        for text in texts:
            reached = walk(path[-1], text.text)
            if reached and reached[-1].left == (GOAL,):
                await args.send("\n".join(reached[-1].steps) + "\n")
                return {"solved": True, "tokens": tokens}
            changed = [*path]
            if reached and len(reached[0].left) > 1:
                child = path[-1].children.setdefault(reached[0].left, reached[0])
                child.proposed += 1
                changed.append(child)
            for node in changed:
                node.visits += 1
                node.reward += len(reached) / len(root.left) / 2
    return {"solved": False, "tokens": tokens}


def walk(node: Node, text: str) -> list[Node]:
    """The nodes behind one, as far as the steps of a text are right."""
    found: list[Node] = []
    for line in text.split("\n"):
        match, rest = STEP.match(line), list(node.left)
        if match is None:
            break
        one, operator, other, result = int(match[1]), match[2], int(match[3]), int(match[4])
        for number in (one, other):
            if number in rest:
                rest.remove(number)
        right = {"+": one + other, "-": one - other, "*": one * other, "/": one / other if other else None}[operator]
        if len(rest) != len(node.left) - 2 or result != right:
            break
        node = Node(tuple(sorted((*rest, result))), (*node.steps, match[0]))
        found.append(node)
    return found
