# status: failed
# error: page
from inferlet_sdk.bindings import allocate, core
def main(args):
    queue = core.create_queue(args.model)
    page = allocate.alloc_kvpage(queue, 1, False)
    allocate.dealloc_kvpage(queue, [page, 1])
    allocate.dealloc_kvpage(queue, [page, 1])
