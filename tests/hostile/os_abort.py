# status: failed
# error: unreachable|abort
import os
def main(args):
    os.abort()
