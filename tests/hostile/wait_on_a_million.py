# status: failed
# error: `futures` has 1000000 items; one call takes \d+: pass less at a time
from inferlet_sdk.bindings import core
def main(args):
    core.wait([1] * 1_000_000)
