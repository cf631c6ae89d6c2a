"""The application of the Python guest component, from which componentize-py builds it.

The build initialises the interpreter and stores it in the component with all modules that it has imported, so a launch
imports nothing of these.
"""

from __future__ import annotations

import gc
import os
import random
from collections.abc import Callable
from typing import Any

import wit_world  # type: ignore[import-not-found]
from componentize_py_types import Err  # type: ignore[import-not-found]

import inferlet_sdk.served  # noqa: F401  # so that it lies in the snapshot
from inferlet_sdk import bindings, event_loop
from inferlet_sdk.guest import heap, lasting, rehearsal, standard_library
from inferlet_sdk.guest.program import ProgramFailed, run_entry, run_program
from inferlet_sdk.tracebacks.report import format_error
from inferlet_sdk.traits.core import forget_sends


class WitWorld(wit_world.WitWorld):  # type: ignore[misc]
    """The exports of the component."""

    def run(self) -> None:
        """Runs the program that the host supplies."""
        rehearsed = False
        while (source := bindings.guest_source.source()) is None:
            rehearsal.rehearse(rehearsal.GENERATION if rehearsed else rehearsal.BEGINNING)
            rehearsed = True
        try:
            entry = run_program(*source)
            while entry is not None:
                entry = _run_again(entry)
        except ProgramFailed as failure:
            raise Err(str(failure)) from None
        except KeyboardInterrupt as error:  # raised by the program: nobody interrupts a guest
            raise Err(str(ProgramFailed(format_error(error)))) from None


def _run_again(entry: Callable[..., Any]) -> Callable[..., Any] | None:
    """Waits for the next launch of the program, and runs its entry for that. Garbage goes first: what a coroutine does
    as it is dropped, and advice on one that was never awaited, are not for the next launch."""
    gc.collect()
    forget_sends()
    bindings.renew()
    name, _, _ = bindings.guest_source.source()
    return run_entry(lambda: entry, name)


_seed = random.seed


def seed_once() -> None:
    """The interpreter is a snapshot, so componentize-py calls `random.seed` in each instance before `run`. Alone, that
    would read 2,496 bytes from the host, which takes as long as all else that an instance does at its start; 32 are as
    good a seed. Programs have the original."""
    random.seed = _seed
    _seed(int.from_bytes(os.urandom(32)))


standard_library.load()
standard_library.keep()
event_loop.install()
random.seed = seed_once  # type: ignore[assignment]
rehearsal.rehearse(*(rehearsal.BEGINNING, rehearsal.GENERATION) * 3)

# The snapshot's 20,000 objects are never freed. Without `freeze`, the garbage collector of every instance would visit
# them all (15 ms) and write to their memory pages, which would then be copied.
gc.collect()
ADDRESSES = lasting.addresses()
heap.fill()
gc.freeze()
