# status: failed
# error: there is no child 4242
from inferlet_sdk import traits
async def main(args):
    traits.cancel_child(4242)
