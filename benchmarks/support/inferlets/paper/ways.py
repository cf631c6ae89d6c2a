"""Greedy tokens behind a prompt in one of three ways, for `benchmarks opportunity_cost`; a message and a result as
`generate` has them. `run`: one call for all tokens; `steps`: a call for each; `dists`: reads each distribution, and
chooses."""

import json
from typing import Any

from inferlet_sdk import Args, Context, IgnoreStopTokens, inferlet

WAY = "run"


@inferlet
async def main(args: Args, max_tokens: int) -> dict[str, Any]:
    args.send("here")
    ctx = Context(args.model).fill(json.loads(await args.receive()))
    await ctx.flush()
    args.send("ready")
    await args.receive()
    tokens: list[int] = []
    counts = []
    if WAY == "dists":
        for _ in range(max_tokens):
            tokens.append((await ctx.next_dist()).max_index())
            ctx.fill(tokens[-1:])
            args.send("token")
            counts.append(len(tokens))
        return {"counts": counts, "tokens": tokens}
    generation = ctx.generate(max_tokens, stop=IgnoreStopTokens(), run_ahead=WAY == "run")
    async for _ in generation:
        args.send("token")
        counts.append(len(generation.tokens))
    args.send("")  # so that the client always sees the last token
    counts.append(len(generation.tokens))
    return {"counts": counts, "tokens": generation.tokens}
