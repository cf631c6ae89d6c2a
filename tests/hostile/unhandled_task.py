# status: finished
import asyncio
async def broken():
    raise ValueError("in a task")
async def main(args):
    task = asyncio.create_task(broken())
    await asyncio.sleep(0.01)
    return "went on"
