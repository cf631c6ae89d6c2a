"""What futures give. Each call that is answered by a future has a type of value of its own, in its room."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pie_control.errors import CallError
from pie_control.ids import Owner

Value = tuple[Any, ...]
"""A named tuple: what the WIT function `take-*` gives, or its one item."""


class Done(NamedTuple):
    """The value of a future that has nothing to tell."""


class Token(NamedTuple):
    """What the future gives."""

    token: int


class Run(NamedTuple):
    """The value of a decode run, whose tokens come some at a time (`AddressSpace.run_advanced`)."""


_NONE = np.zeros(0, np.int32)


class Import(NamedTuple):
    """The value of an import: what is known of what the pages hold. The pages themselves are the address space's
    business."""

    positions: NDArray[np.int32]  # of each slot, as in resources/tables/slots.py
    tokens: NDArray[np.int32]  # of all slots that hold one, or none if its maker did not tell
    adapters: NDArray[np.int32] = _NONE  # numbers of those that the keys may depend on


class Completion(NamedTuple):
    """The answer to one future: a value, or the error in its place."""

    owner: Owner
    future: int
    value: Value | CallError
