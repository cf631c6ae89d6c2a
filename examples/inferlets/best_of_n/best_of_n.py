from collections import Counter
from itertools import pairwise

from inferlet_sdk import Context, Sampler, inferlet


@inferlet
async def main(
    args, question: str = "Tell me a fact about bees.", count: int = 8, temperature: float = 1.0, seed: int = 4
):
    """Samples several answers at the same time. Takes the most likely one, the shortest one, and the one that is
    closest to the others (minimum Bayes risk)."""
    ctx, sampler = Context(args.model).fill_chat("user", question), Sampler(temperature=temperature, seed=seed)
    found = await ctx.best_of(count, 80, sampler=sampler)
    samples = [one.text for one in found]
    closest = max(samples, key=lambda text: sum(likeness(text, other) for other in samples))
    for rule, text in (("most likely", samples[0]), ("shortest", min(samples, key=len)), ("closest", closest)):
        await args.send(f"{rule}: {text}\n")
    return {"samples": samples, "tokens": [len(one.tokens) for one in found], "closest": closest}


def likeness(one: str, other: str) -> float:
    """How many pairs of neighbouring characters two texts have in common, from 0 to 1."""
    left, right = (Counter(pairwise(text)) for text in (one, other))
    return 2 * (left & right).total() / max(1, left.total() + right.total())
