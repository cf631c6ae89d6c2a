"""Sends greedy tokens behind a prompt, given as a message: a JSON list of tokens. It reads each piece of text and sends
it, or, if `piped`, sleeps while they go to the client."""

import json
from typing import Any

from inferlet_sdk import Args, Context, IgnoreStopTokens, inferlet


@inferlet
async def main(args: Args, max_tokens: int, piped: bool = False) -> dict[str, Any]:
    args.send("here")
    ctx = Context(args.model).fill(json.loads(await args.receive()))
    await ctx.flush()
    args.send("ready")
    await args.receive()
    generation = ctx.generate(max_tokens, stop=IgnoreStopTokens())
    counts = []  # tokens at each message: special tokens, and tokens that end within a character, give no text
    if piped:
        await args.stream(generation)
    else:
        async for piece in generation:
            args.send(piece)
            counts.append(len(generation.tokens))
    args.send("")  # so that the client always sees the last token
    counts.append(len(generation.tokens))
    return {"counts": counts, "tokens": generation.tokens}
