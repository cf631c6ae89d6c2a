# status: failed|exceeded
# error: timers|processor time|futures
import asyncio
async def main(args):
    await asyncio.gather(*(asyncio.sleep(1000) for _ in range(100_000)))
