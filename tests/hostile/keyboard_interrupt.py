# status: failed
# error: KeyboardInterrupt: of its own
async def main(args):
    raise KeyboardInterrupt("of its own")
