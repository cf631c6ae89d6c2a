# status: failed|exceeded
# error: commands|processor time
from inferlet_sdk.bindings import allocate, core, input_text
def main(args):
    queue = core.create_queue(args.model)
    embed = allocate.alloc(queue, allocate.Memory.EMB, 1)
    while True:
        input_text.embed_txt(queue, [1], [0], [embed, 1])
