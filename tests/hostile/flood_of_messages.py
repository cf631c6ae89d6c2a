# status: failed
# error: no client reads
from inferlet_sdk.bindings import core
def main(args):
    while True:
        core.send("x" * 100_000)
