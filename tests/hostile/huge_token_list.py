# status: failed
# error: tokens|embed|positions
from inferlet_sdk.bindings import core, input_text
def main(args):
    queue = core.create_queue(args.model)
    input_text.embed_txt(queue, [1] * 500_000, [0] * 500_000, [0, 500_000])
