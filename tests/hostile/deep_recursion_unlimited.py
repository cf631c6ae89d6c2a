# status: failed
# error: RecursionError
import sys
def deeper(n):
    return deeper(n + 1)
def main(args):
    sys.setrecursionlimit(10**8)
    return deeper(0)
