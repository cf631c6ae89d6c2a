"""What `benchmarks scale` runs.

Each inferlet waits for a message that says when to start, in nanoseconds since the epoch. It generates `tokens` tokens
and sends as many characters: the model's tokens have one each. The first message is the first token's.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable

from inferlet_sdk import Args, Context, gather, inferlet

BRANCHES = 8


async def stream(args: Args, context: Context, tokens: int, work: int) -> None:
    """Sends each piece as it comes."""
    async for piece in context.generate(tokens):
        args.send(piece)


async def piped(args: Args, context: Context, tokens: int, work: int) -> None:
    """Lets the pieces go to the client without it."""
    await args.stream(context.generate(tokens))


async def whole(args: Args, context: Context, tokens: int, work: int) -> None:
    """Generates all in one go, and sends it once."""
    args.send(await context.generate_until(max_tokens=1))
    args.send(await context.generate_until(max_tokens=tokens - 1))


async def distributions(args: Args, context: Context, tokens: int, work: int) -> None:
    """Reads the distribution of each token, and chooses."""
    chosen: list[int] = []
    for number in range(tokens):
        dist = await context.next_dist()
        chosen.append(dist.max_index())
        context.fill(chosen[-1:])
        if number == 0:
            args.send(chr(chosen[0]))
    args.send("".join(map(chr, chosen[1:])))


async def fork_join(args: Args, context: Context, tokens: int, work: int) -> None:
    """Branches generate at the same time; one of their texts is kept."""
    branches = [context.fork() for _ in range(BRANCHES)]
    args.send((await gather(*(branch.generate_until(max_tokens=1) for branch in branches)))[0])
    args.send(max(await gather(*(branch.generate_until(max_tokens=tokens - 1) for branch in branches))))


async def compute(args: Args, context: Context, tokens: int, work: int) -> None:
    """Sends each piece, and computes for a while for each of its tokens."""
    async for piece in context.generate(tokens):
        args.send(piece)
        rounds(work * len(piece))


async def calibrate(args: Args, context: Context, tokens: int, work: int) -> None:
    """Sends how many rounds take a millisecond."""
    rounds(20_000)
    start = time.perf_counter()
    rounds(20_000)
    args.send(str(round(20_000 / (1e3 * (time.perf_counter() - start)))))


def rounds(number: int) -> int:
    """Keeps Python busy."""
    total = 0
    for value in range(number):
        total += value
    return total


Program = Callable[[Args, Context, int, int], Awaitable[None]]
PROGRAMS: dict[str, Program] = {
    "stream": stream,
    "piped": piped,
    "whole": whole,
    "distributions": distributions,
    "fork_join": fork_join,
    "compute": compute,
    "calibrate": calibrate,
}


@inferlet
async def main(args: Args, program: str, tokens: int, work: int = 0) -> None:
    context = Context(args.model).fill("Once upon a time there was")
    await context.flush()
    args.send("ready")
    start = int(await args.receive())
    await asyncio.sleep(start / 1e9 - time.time())
    await PROGRAMS[program](args, context, tokens, work)
    await args.receive()  # so that its end costs nothing in the measured time
