# status: failed
# error: bytes of commands that wait and of results not taken are held|futures are open
from inferlet_sdk.bindings import allocate, core, forward, input_text, output_text
from inferlet_sdk.errors import call
def main(args):
    queue = core.create_queue(args.model)
    embed = allocate.alloc(queue, allocate.Memory.EMB, 2)
    input_text.embed_txt(queue, [1], [0], [embed, 1])
    forward.forward(queue, [], [embed, 1], [], [embed + 1, 1], [], [], [], "", 0, 0, 0.0, False)
    while True:
        call(output_text.get_next_dist, queue, [embed + 1, 1], 259, 1.0)
