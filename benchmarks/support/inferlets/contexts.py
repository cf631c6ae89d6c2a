"""What contexts cost, seen from a program.

`mode` "fork": seconds of a fork of a context of `tokens` tokens, median. "first": seconds to the first token
behind a prompt of `tokens` tokens, made from `seed`. "live": how many of `tokens` forks were alive at once, and then
each gave tokens. "cost": forks a context of `tokens` tokens, samples a token of each fork, and closes them; it waits
for a message before each of the three.
"""

import random
from typing import Any

from inferlet_sdk import Args, Context, IgnoreStopTokens, gather, inferlet, traits

FORKS = 100
MANY = 1000


def prompt(tokens: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(97, 123), k=tokens)


async def fork(args: Args, tokens: int) -> Any:
    ctx = Context(args.model, share=False).fill(prompt(tokens, 1))
    await ctx.sample()
    await args.send("forking")
    await args.receive()
    times, forks = [], []
    for _ in range(FORKS):
        started = traits.now()
        forks.append(ctx.fork())
        times.append(traits.now() - started)
    firsts = await gather(*(one.sample() for one in forks))
    return [sorted(times)[FORKS // 2], len(set(firsts))]


async def cost(args: Args, tokens: int) -> int:
    ctx = Context(args.model, share=False).fill(prompt(tokens, 1))
    await ctx.sample()
    await _next(args, "forks")
    forks = [ctx.fork() for _ in range(MANY)]
    await _next(args, "samples")
    firsts = await gather(*(one.sample() for one in forks))
    await _next(args, "closes")
    for one in forks:
        one.close()
    await _next(args, "is done")
    return len(set(firsts))


async def _next(args: Args, what: str) -> None:
    await args.send(what)
    await args.receive()


async def first(args: Args, tokens: int, seed: int, share: bool) -> float:
    ctx = Context(args.model, share=share).fill(prompt(tokens, seed))
    started = traits.now()
    async for _ in ctx.generate(4, stop=IgnoreStopTokens()):
        break
    return traits.now() - started


async def live(args: Args, tokens: int) -> int:
    ctx = Context(args.model, share=False).fill(prompt(1000, 1))
    forks = [ctx.fork() for _ in range(tokens)]
    texts = await gather(*(one.generate_until(IgnoreStopTokens(), 2) for one in forks))
    return len(texts)


@inferlet
async def main(args: Args, mode: str, tokens: int, seed: int = 2, share: bool = True) -> Any:
    if mode == "fork":
        return await fork(args, tokens)
    if mode == "cost":
        return await cost(args, tokens)
    return await live(args, tokens) if mode == "live" else await first(args, tokens, seed, share)
