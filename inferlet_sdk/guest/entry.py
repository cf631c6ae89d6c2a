"""The application of the Python guest component, from which componentize-py builds it.

The build initialises the interpreter and stores it in the component with all modules that it has imported, so a launch
imports nothing.
"""

from __future__ import annotations

import gc

import wit_world  # type: ignore[import-not-found]
from componentize_py_types import Err  # type: ignore[import-not-found]

from inferlet_sdk import bindings, event_loop
from inferlet_sdk.guest import rehearsal, standard_library
from inferlet_sdk.guest.program import ProgramFailed, run_program


class WitWorld(wit_world.WitWorld):  # type: ignore[misc]
    """The exports of the component."""

    def run(self) -> None:
        """Runs the program that the host supplies."""
        if bindings.guest_source.made_ahead():
            rehearsal.rehearse(rounds=1)
        try:
            run_program(*bindings.guest_source.source())
        except ProgramFailed as failure:
            raise Err(str(failure)) from None


standard_library.load()
event_loop.install()
rehearsal.rehearse(rounds=3)

# The snapshot's 20,000 objects are never freed. Without `freeze`, the garbage collector of every instance would visit
# them all (15 ms) and write to their memory pages, which would then be copied.
gc.collect()
gc.freeze()
