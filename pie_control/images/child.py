"""`python -m pie_control.images.child PARENT MEMORY SECONDS`: decodes images that come on stdin, to stdout.

A process of its own, because the bytes come from strangers: what a decoder does with them may take time and memory that
nobody foresees, or crash. It has bounds of both (MEMORY in bytes, SECONDS of processor time for an image), and ends
with its parent or its stdin.
"""

from __future__ import annotations

import os
import resource
import sys
import time
from typing import BinaryIO

from pie_inference.options import lifetime

from .messages import LENGTH_BYTES, Begun, ImageRefused, decode_request, framed
from .prepare import prepare
from .tiling import BadImage

NICENESS = 10
"""It yields the processors to the server."""


def bound(memory_bytes: int) -> None:
    """Bounds the memory of this process. It leaves no core dump."""
    os.nice(NICENESS)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))


def bound_time(seconds: int) -> None:
    """Ends this process when it has used so much more processor time: if its parent cannot."""
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time()) + seconds + 1, hard))


def serve(requests: BinaryIO, answers: BinaryIO, seconds: int) -> None:
    """Answers requests until they end."""
    while head := requests.read(LENGTH_BYTES):
        bound_time(seconds)
        begun = time.process_time()
        request = decode_request(requests.read(int.from_bytes(head, "little")))
        try:
            made = prepare(request.data, request.vision)
        except BadImage as error:
            answers.write(framed(ImageRefused(str(error), time.process_time() - begun)))
        else:
            took = time.process_time() - begun
            answers.write(framed(Begun(made.width, made.height, len(made.tiles), took)))
            for tile in made.tiles:
                answers.write(framed(tile))
        answers.flush()


def main(parent: int, memory_bytes: int, seconds: int) -> None:
    """Entry point."""
    lifetime.ignore_signals()
    lifetime.die_with(parent)
    bound(memory_bytes)
    serve(sys.stdin.buffer, sys.stdout.buffer, seconds)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
    os._exit(0)
