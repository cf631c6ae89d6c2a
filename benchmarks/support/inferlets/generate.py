"""Sends greedy tokens behind a prompt, given as a message: a JSON list of tokens. `way`: `run` reads each piece of text
of one call for all tokens, and sends it; `piped` sleeps while they go to the client; `steps` makes a call for each;
`dists` reads the distribution of each, too, and chooses."""

import json
from typing import Any

from inferlet_sdk import Args, Context, Dist, DistSampler, Greedy, IgnoreStopTokens, inferlet


@inferlet
async def main(args: Args, max_tokens: int, way: str = "run") -> dict[str, Any]:
    args.send("here")
    ctx = Context(args.model).fill(json.loads(await args.receive()))
    await ctx.flush()
    args.send("ready")
    await args.receive()
    sampler = DistSampler(Dist.max_index) if way == "dists" else Greedy()
    generation = ctx.generate(max_tokens, stop=IgnoreStopTokens(), sampler=sampler, run_ahead=way != "steps")
    counts = []  # tokens at each message: special tokens, and tokens that end within a character, give no text
    if way == "piped":
        await args.stream(generation)
    else:
        async for piece in generation:
            args.send(piece)
            counts.append(len(generation.tokens))
    args.send("")  # so that the client always sees the last token
    counts.append(len(generation.tokens))
    return {"counts": counts, "tokens": generation.tokens}
