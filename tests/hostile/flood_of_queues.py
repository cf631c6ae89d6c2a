# status: failed
# error: queues
from inferlet_sdk.bindings import core
def main(args):
    while True:
        core.create_queue(args.model)
