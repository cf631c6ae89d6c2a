# status: failed
# error: MemoryError|unreachable|memory
def main(args):
    kept = []
    while True:
        kept.append(bytearray(10_000_000))
