# status: failed
# error: no client reads, and \d+ bytes of messages wait for it: await the future
from inferlet_sdk.bindings import core
def main(args):
    while True:
        core.send(0, "x" * 100_000)
