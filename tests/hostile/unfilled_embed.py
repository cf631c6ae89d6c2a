# status: failed
# error: never filled|not filled|filled
from inferlet_sdk.bindings import allocate, core, output_text
def main(args):
    queue = core.create_queue(args.model)
    embed = allocate.alloc(queue, allocate.Memory.EMB, 1)
    output_text.get_next_dist(queue, [embed, 1], 5, 1.0)
