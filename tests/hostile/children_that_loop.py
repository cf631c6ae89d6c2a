# status: finished|exceeded
# error: |processor time
from inferlet_sdk import gather, launch
async def main(args, child=False):
    while child:
        pass
    ends = await gather(*(launch(child=True).join() for _ in range(20)))
    assert all(end.status == "exceeded" for end in ends), ends
