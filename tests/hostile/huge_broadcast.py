# status: failed
# error: 262145 bytes are more than a broadcast may have
from inferlet_sdk import broadcast
async def main(args):
    await broadcast("t", "x" * 262145)
