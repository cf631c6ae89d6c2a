"""`python -m pie_inference.serving`: a worker process."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from ..config import parse_options
from ..errors import InferenceError
from ..options import lifetime
from ..options.isa import limit_isa


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the worker. Returns the exit status: 0, 1 if serving failed, 2 for wrong options."""
    lifetime.ignore_signals()
    try:
        options = parse_options(arguments)
    except InferenceError as error:
        print(error, file=sys.stderr)
        return 2
    if options.parent is not None:
        lifetime.die_with(options.parent)
    if options.place.listen is not None:
        lifetime.heed_signals()
    limit_isa(options.config.max_isa)
    from .loop import run  # imports torch, which wrong options and --help need not wait for

    return run(options)


if __name__ == "__main__":
    status = main()
    sys.stderr.flush()
    os._exit(status)  # ending torch in order would take a third of a second for nothing
