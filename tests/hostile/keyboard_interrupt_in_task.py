# status: failed
# error: KeyboardInterrupt
import asyncio
async def interrupt():
    raise KeyboardInterrupt
async def main(args):
    await asyncio.create_task(interrupt())
