# status: exceeded|failed
# error: processor time|MemoryError|unreachable
def main(args):
    return sum(sorted(range(10**9)))
