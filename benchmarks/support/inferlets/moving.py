"""Moves tokens that were computed, and joins a prompt from parts that were."""

from __future__ import annotations

from itertools import pairwise
from time import perf_counter

from inferlet_sdk import Args, Context, inferlet, traits


@inferlet
async def main(args: Args, prompt: list[int], parts: int) -> list[float]:
    """Seconds to compute a prompt, to move it, to the first token behind its joined parts, and behind it filled."""

    def context(tokens: list[int]) -> Context:
        return Context(args.model, share=False).fill(tokens)

    times = [perf_counter()]
    whole = context(prompt)
    await whole.flush()
    times.append(perf_counter())
    traits.shift_kvpage(whole, whole.pages, len(prompt))
    await traits.synchronize(whole)
    times.append(perf_counter())
    whole.close()

    size = len(prompt) // parts
    modules = [context(prompt[first : first + size]) for first in range(0, size * parts, size)]
    for module in modules:
        await module.flush()
    times.append(perf_counter())
    joined = Context.join(modules[::-1])
    await joined.sample()
    times.append(perf_counter())
    await context(prompt[: size * parts]).sample()
    times.append(perf_counter())
    seconds = [after - before for before, after in pairwise(times)]
    return [seconds[0], seconds[1], seconds[3], seconds[4]]
