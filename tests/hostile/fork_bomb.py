# status: failed|exceeded
# error: children that run|generations above|processor time|hold
from inferlet_sdk import gather, launch
async def main(args):
    await gather(*[launch() for _ in range(1000)])
