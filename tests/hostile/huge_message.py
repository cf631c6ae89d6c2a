# status: failed
# error: more than a message may have
from inferlet_sdk.bindings import core
def main(args):
    core.send(0, "x" * 3_000_000)
