# status: failed
# error: one call passed or returned more than 8388608 bytes
from inferlet_sdk.bindings import core, input_text
def main(args):
    queue = core.create_queue(args.model)
    input_text.embed_txt(queue, [1] * 500_000, [0] * 500_000, [0, 500_000])
