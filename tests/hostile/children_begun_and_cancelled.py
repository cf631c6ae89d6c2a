# status: failed|exceeded
# error: children that run|processor time
from inferlet_sdk import launch
async def main(args):
    while True:
        child = launch()
        child.cancel()
        child.close()
