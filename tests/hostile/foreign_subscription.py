# status: failed
# error: there is no source 4242
from inferlet_sdk import traits
async def main(args):
    await traits.next_published(4242)
