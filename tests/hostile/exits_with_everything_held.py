# status: finished
from inferlet_sdk.bindings import allocate, core, forward, fused, input_text
def main(args):
    for _ in range(8):
        queue = core.create_queue(args.model)
        pages = allocate.alloc(queue, allocate.Memory.KVPAGE, 20)
        embeds = allocate.alloc(queue, allocate.Memory.EMB, 200)
        input_text.embed_txt(queue, list(range(100)), list(range(100)), [embeds, 100])
        forward.forward(queue, [], [embeds, 100], [pages, 20], [embeds + 150, 1], [], [], [], "", 0, 0, 0.0, False)
        sampler = fused.create_sampler('{"temperature": 0}')
        fused.sample(queue, embeds + 150, sampler, [], "", 0)
        core.receive(0)
        core.sleep(10**12)
    return "left it all"
