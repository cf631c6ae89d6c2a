# status: failed
# error: queue
from inferlet_sdk.bindings import allocate
def main(args):
    allocate.alloc_kvpage(12345, 1, False)
