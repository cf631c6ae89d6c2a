# status: failed
# error: Overflow|negative|convert|range|int
from inferlet_sdk.bindings import allocate
def main(args):
    allocate.alloc(-1, allocate.Memory.KVPAGE, 1)
