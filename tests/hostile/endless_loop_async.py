# status: exceeded
# error: processor time
import asyncio
async def main(args):
    while True:
        await asyncio.sleep(0)
