# status: failed
# error: pages
from inferlet_sdk.bindings import allocate, core
def main(args):
    queue = core.create_queue(args.model)
    while True:
        allocate.alloc(queue, allocate.Memory.KVPAGE, 100)
