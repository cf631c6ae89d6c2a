# status: failed
# error: OSError|FileNotFoundError
import os
def main(args):
    return os.listdir("/")
