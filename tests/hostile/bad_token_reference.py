# status: failed
# error: reference|future
from inferlet_sdk.bindings import allocate, core, input_text
def main(args):
    queue = core.create_queue(args.model)
    embed = allocate.alloc(queue, allocate.Memory.EMB, 1)
    input_text.embed_txt(queue, [0x80000000 | 55], [0], [embed, 1])
