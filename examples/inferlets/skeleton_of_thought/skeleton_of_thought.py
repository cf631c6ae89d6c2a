from collections.abc import Sequence
from typing import Literal

from inferlet_sdk import Context, Greedy, Sampler, gather, inferlet

COUNTS = {2: "two", 3: "three", 4: "four", 5: "five"}
TRIES = 12


@inferlet
async def main(
    args, topic: str = "bees", points: Literal[2, 3, 4, 5] = 4, headings: Sequence[str] = (), at_once: bool = True
):
    """Writes an outline, if it is not given, then a sentence for each of its points at the same time."""
    headings = list(headings) or await outline(args.model, topic, points)
    asked = [f"Write one sentence about {topic}. Point: {heading}" for heading in headings]
    if at_once:
        drafts = await gather(*(sentences(args.model, question) for question in asked))
    else:
        drafts = [await sentences(args.model, question) for question in asked]
    found: list[str] = []
    for heading, draft in zip(headings, drafts, strict=True):
        found.append(first_new(draft, found))
        await args.send(f"{heading}: {found[-1]}\n")
    return [headings, found]


async def outline(model: str, topic: str, points: int) -> list[str]:
    """Headings, each of which is new."""
    found: list[str] = []
    async with Context(model) as ctx:
        ctx.fill_chat("user", f"Write an outline of {COUNTS[points]} points about {topic}.")
        for number in range(1, points + 1):
            ctx.fill(f"{number}.")
            found.append(first_new([text.strip() for text in await continuations(ctx, "\n")], found))
            ctx.fill(f" {found[-1]}\n")
    return found


async def sentences(model: str, question: str) -> list[str]:
    async with Context(model) as ctx:
        return await continuations(ctx.fill_chat("user", question))


async def continuations(ctx: Context, stop: str | None = None) -> list[str]:
    """The most likely continuation, then samples, all at the same time."""
    samplers = [Greedy(), *(Sampler(seed=seed) for seed in range(1, TRIES))]
    branches = [ctx.fork() for _ in samplers]
    pairs = zip(branches, samplers, strict=True)
    texts = await gather(*(branch.generate_until(stop, 40, sampler=sampler) for branch, sampler in pairs))
    for branch in branches:
        branch.close()
    return texts


def first_new(texts: list[str], known: list[str]) -> str:
    """The first text that is not known, or the first one."""
    return next((text for text in texts if text not in known), texts[0])
