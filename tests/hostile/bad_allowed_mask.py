# status: failed
# error: base64|allowed
from inferlet_sdk.bindings import allocate, core, fused
def main(args):
    queue = core.create_queue(args.model)
    embed = allocate.alloc(queue, allocate.Memory.EMB, 1)
    sampler = fused.create_sampler('{"temperature": 0}')
    fused.sample(queue, embed, sampler, [], "!!!", 0)
