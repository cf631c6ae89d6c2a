"""`python -m benchmarks.gpu_check` is `python -m benchmarks gpu_check`."""

import sys

from .__main__ import start

if __name__ == "__main__":
    sys.exit(start(["gpu_check", *sys.argv[1:]]))
