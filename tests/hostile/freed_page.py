# status: failed
# error: page
from inferlet_sdk.bindings import allocate, core
def main(args):
    queue = core.create_queue(args.model)
    page = allocate.alloc(queue, allocate.Memory.KVPAGE, 1)
    allocate.dealloc(queue, allocate.Memory.KVPAGE, [page, 1])
    allocate.dealloc(queue, allocate.Memory.KVPAGE, [page, 1])
