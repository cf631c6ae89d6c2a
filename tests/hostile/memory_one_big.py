# status: failed
# error: MemoryError
def main(args):
    return len(bytes(1_500_000_000))
