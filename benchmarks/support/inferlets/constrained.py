"""Generates tokens behind a prompt, free or kept to a JSON Schema."""

import json
from typing import Any

from inferlet_sdk import Args, Context, IgnoreStopTokens, inferlet


@inferlet
async def main(args: Args, prompt: str, max_tokens: int, schema: str = "") -> dict[str, Any]:
    args.send("here")
    ctx = Context(args.model).fill(prompt)
    await ctx.flush()
    wanted = json.loads(schema) if schema else None  # a program has it in its source
    args.send("ready")
    await args.receive()
    generation = ctx.generate(max_tokens, stop=IgnoreStopTokens(), schema=wanted)
    text = await generation.whole()
    return {"text": text, "tokens": len(generation.tokens)}
