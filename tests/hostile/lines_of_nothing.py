# status: failed|exceeded
# error: processor time
import sys
def main(args):
    while True:
        sys.stdout.write("\n" * 8_192)
        sys.stdout.flush()
