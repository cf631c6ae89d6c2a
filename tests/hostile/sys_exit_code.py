# status: failed
# error: exited with code 3
import sys
def main(args):
    sys.exit(3)
