# status: failed
# error: range
from inferlet_sdk.bindings import allocate, core
def main(args):
    queue = core.create_queue(args.model)
    allocate.dealloc(queue, allocate.Memory.KVPAGE, [1, 2, 3])
