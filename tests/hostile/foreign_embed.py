# status: failed
# error: embed
from inferlet_sdk.bindings import core, forward
def main(args):
    queue = core.create_queue(args.model)
    forward.forward(queue, [], [77, 1], [], [], [], [], [], "", 0, 0, 0.0, False)
