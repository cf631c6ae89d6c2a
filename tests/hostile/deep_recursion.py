# status: failed
# error: RecursionError
def deeper(n):
    return deeper(n + 1)
def main(args):
    return deeper(0)
