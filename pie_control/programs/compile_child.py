"""`python -m pie_control.programs.compile_child OUTPUT MEMORY SECONDS`: compiles the component on stdin into a file.

A process of its own, because compiling takes time and memory that nobody can foresee (a component of a kilobyte may
want a terabyte), and cannot be interrupted. It ends with REFUSED and the reason on stderr if the component is wrong,
and with FULL if the file cannot be written.
"""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Sequence
from pathlib import Path

from pie_inference.options.lifetime import ignore_signals

REFUSED, FULL = 3, 4
MOST_REASON = 4000
"""Characters of a reason; the error of a component may quote all of it."""
NICENESS = 10


def limit(memory_bytes: int, seconds: int) -> None:
    """Bounds this process, and has it yield the processors to the server; 0: neither. It leaves no core dump."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if memory_bytes:
        os.nice(NICENESS)
        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    if seconds:
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))  # at the first it says why it ends


def main(arguments: Sequence[str]) -> int:
    """Entry point."""
    ignore_signals()
    output = Path(arguments[0])
    limit(int(arguments[1]), int(arguments[2]))
    # The parent imports this module without wasmtime; and this process starts for each component, so it imports little.
    from ..sandbox.components import compile_component, imported_functions, load_compiled
    from ..sandbox.engine import LinkError, new_engine

    engine = new_engine()
    try:
        output.write_bytes(compile_component(engine, sys.stdin.buffer.read()))
        list(imported_functions(engine, load_compiled(engine, output)))
    except LinkError as error:
        print(str(error)[:MOST_REASON], file=sys.stderr)
        return REFUSED
    except OSError:
        return FULL
    return 0


if __name__ == "__main__":
    status = main(sys.argv[1:])
    sys.stderr.flush()
    os._exit(status)  # freeing a large component in order would take time for nothing
