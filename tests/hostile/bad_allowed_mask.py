# status: failed
# error: base64|allowed
from inferlet_sdk.bindings import allocate, core, fused
def main(args):
    queue = core.create_queue(args.model)
    embed = allocate.alloc_emb(queue, 1)
    sampler = fused.create_sampler(fused.SamplerConfig(0, 0, 1, 0, 1, 0, 0, None))
    fused.sample_constrained(queue, embed, sampler, [], "!!!")
