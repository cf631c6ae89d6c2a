# status: failed
# error: range
from inferlet_sdk.bindings import allocate, core
def main(args):
    queue = core.create_queue(args.model)
    allocate.dealloc_kvpage(queue, [1, 2, 3])
