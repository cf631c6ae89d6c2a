# status: failed
# error: the child receives slowly
import asyncio
from inferlet_sdk import launch
async def main(args, child=False):
    if child:
        await asyncio.sleep(3600)
    one = launch(child=True)
    while True:
        one.send("x" * 1_000_000)
