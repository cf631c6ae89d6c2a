# status: failed
# error: bytes of commands that wait and of results not taken are held|pages
from inferlet_sdk.bindings import allocate, core, forward, fused, input_text
from inferlet_sdk.errors import call
def main(args):
    queue = core.create_queue(args.model)
    embed, sampler = allocate.alloc(queue, allocate.Memory.EMB, 2), fused.create_sampler("{}")
    while True:  # nobody takes their tokens
        page = call(allocate.alloc, queue, allocate.Memory.RESERVED_KVPAGE, 13)
        input_text.embed_txt(queue, [1], [0], [embed, 1])
        forward.forward(queue, [], [embed, 1], [], [embed + 1, 1], [], [], [], "", 0, 0, 0.0, False)
        call(fused.decode, queue, embed + 1, sampler, embed, 1, [], [page, 13], 200, [], "", 0, 0)
