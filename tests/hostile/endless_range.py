# status: failed
# error: embed|range
from inferlet_sdk.bindings import core, forward
def main(args):
    queue = core.create_queue(args.model)
    forward.forward(queue, [], [0, 4294967295], [], [], [], [], [], "", 0, 0, 0.0, False)
