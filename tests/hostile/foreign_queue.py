# status: failed
# error: queue
from inferlet_sdk.bindings import allocate
def main(args):
    allocate.alloc(12345, allocate.Memory.KVPAGE, 1)
