# status: failed|exceeded
# error: processor time
from inferlet_sdk.bindings import core, tokenize
def main(args):
    queue = core.create_queue(args.model)
    while True:
        tokenize.tokenize(queue, "\N{GRINNING FACE}" * 32_000, True)
