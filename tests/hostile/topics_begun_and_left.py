# status: exceeded
# error: processor time
from inferlet_sdk import broadcast, subscribe
async def main(args):
    number = 0
    while True:
        number += 1
        with subscribe(str(number)) as queue:
            queue.next().cancel()
            await broadcast(str(number), "x")
