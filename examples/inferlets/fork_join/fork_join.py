import re

from inferlet_sdk import Context, gather, inferlet


@inferlet
async def main(args, topic: str = "bees", points: int = 3):
    """Writes an outline, then expands its points at the same time (skeleton of thought)."""
    shared = Context(args.model)
    shared.fill_chat("user", f"Write an outline of {points} points about {topic}.")
    outline = await shared.generate_until(max_tokens=80)
    headings = re.findall(r"^\d+\. (.+)$", outline, re.MULTILINE)[:points]

    sentences = await gather(*(expand(shared.fork(), number) for number in range(1, len(headings) + 1)))

    for heading, sentence in zip(headings, sentences, strict=True):
        await args.send(f"{heading}: {sentence}\n")
    return len(headings)


async def expand(branch: Context, number: int) -> str:
    async with branch:
        branch.fill_chat("user", f"Expand point {number}.")
        return await branch.generate_until(max_tokens=40)
