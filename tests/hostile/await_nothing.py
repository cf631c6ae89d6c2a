# status: failed
# error: (?i)deadlock|nothing|never
import asyncio
async def main(args):
    await asyncio.get_running_loop().create_future()
