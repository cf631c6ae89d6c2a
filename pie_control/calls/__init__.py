"""The calls of the inferlet API that reach a queue or a worker: one module each, in a folder for each trait.

A module of a call is its room. It says what a call checks and what command it gives (`issue`), how commands of this
kind share a batch, which message the batch becomes, and what the worker's result is to each of them. `CALL` is the
record of it all; waves, results, statistics, traits and the functions that inferlets import are derived from these
records. See docs/adding-a-call.md.

Pure: no socket, clock or thread; imports `resources`, the protocol's values and `errors`.
"""

from __future__ import annotations

from .registry import CALLS, COMMANDS, implemented_traits

__all__ = ["CALLS", "COMMANDS", "implemented_traits"]
