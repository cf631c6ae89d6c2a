# status: failed
# error: page
from inferlet_sdk.bindings import allocate, core, forward, input_text
def main(args):
    queue = core.create_queue(args.model)
    embed = allocate.alloc(queue, allocate.Memory.EMB, 1)
    input_text.embed_txt(queue, [1], [0], [embed, 1])
    forward.forward(queue, [4000, 1], [embed, 1], [], [], [], [], [], "", 0, 0, 0.0, False)
