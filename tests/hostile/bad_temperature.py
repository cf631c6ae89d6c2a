# status: failed
# error: temperature
from inferlet_sdk.bindings import fused
def main(args):
    fused.create_sampler(fused.SamplerConfig(float("nan"), 0, 1, 0, 1, 0, 0, None))
