# status: failed
# error: children that run
from inferlet_sdk import launch
async def main(args):
    while True:
        child = launch()
        child.cancel()
        child.close()
