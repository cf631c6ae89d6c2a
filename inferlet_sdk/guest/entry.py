"""The application of the Python guest component: what componentize-py builds from.

The interpreter is initialised at build time and stored in the component, with everything that has been imported by
then: so a launch pays for no import.
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
        """Runs the program that the host hands over."""
        if bindings.guest_source.made_ahead():
            rehearsal.rehearse(rounds=1)
        try:
            run_program(*bindings.guest_source.source())
        except ProgramFailed as failure:
            raise Err(str(failure)) from None


standard_library.load()
event_loop.install()
rehearsal.rehearse(rounds=3)

# The snapshot's 20,000 objects live for ever. Unless frozen, the garbage collector of every instance would visit them
# all (15 ms), and write to (so copy) their pages of memory.
gc.collect()
gc.freeze()
