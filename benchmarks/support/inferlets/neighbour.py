"""Asks for a token every 10 ms, and sends a message each time."""

import asyncio

from inferlet_sdk import Args, Context, inferlet


@inferlet
async def main(args: Args) -> None:
    beats = 0
    while True:
        context = Context(args.model)
        context.fill("the quick brown fox ")
        for _ in range(50):
            async for _ in context.generate(max_tokens=1):
                pass
            beats += 1
            args.send(str(beats))
            await asyncio.sleep(0.01)
        context.close()
