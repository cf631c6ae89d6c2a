# status: failed
# error: broadcasts are under way
from inferlet_sdk import broadcast, subscribe
async def main(args):
    subscribe("t")
    while True:
        broadcast("t", "x" * 1000)
