# status: failed
# error: more than a message may have
def main(args):
    return "x" * 3_000_000
