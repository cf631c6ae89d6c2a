# status: failed
# error: Overflow|negative|convert|range|int
from inferlet_sdk.bindings import allocate
def main(args):
    allocate.alloc_kvpage(-1, 1, False)
