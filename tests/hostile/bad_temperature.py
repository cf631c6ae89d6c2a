# status: failed
# error: temperature
from inferlet_sdk.bindings import fused
def main(args):
    fused.create_sampler('{"temperature": NaN}')
