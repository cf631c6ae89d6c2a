# status: failed
# error: messages of children that have ended wait: receive the messages
from inferlet_sdk import launch
async def main(args, child=False):
    if child:
        args.send("x" * 260_000)  # as much as a child may say while nobody listens
        return
    children = []
    while True:
        children.append(launch(child=True))
        await children[-1]
