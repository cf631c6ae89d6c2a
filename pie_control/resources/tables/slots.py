"""What an address space notes of a slot: the position of the token in it, a negative number if there is none, or below
all of these one that stands for a hidden token and its position."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

EMPTY = -1
RESERVED = -2  # a decode run will fill it
UNBOUND = -3  # its page has no memory yet, and only a decode run may fill it
SEALED = -4  # its page is exported or imported, and nobody may fill it
HIDDEN = -16  # of a hidden token at position 0

_EMPTY, _HIDDEN = np.array(EMPTY, np.int32), np.array(HIDDEN, np.int32)
"""They have the slots' own type: a comparison with a number of Python takes twice as long."""

Slots = NDArray[np.int32]
Booleans = NDArray[np.bool_]


def is_token(slots: Slots) -> Booleans:
    """Tells the slots that hold a token, hidden or not."""
    found: Booleans = (slots > _EMPTY) | (slots <= _HIDDEN)
    return found


def is_withheld(slots: Slots) -> Booleans:
    """Tells the slots that hold nothing and are not free."""
    found: Booleans = (slots < _EMPTY) & (slots > _HIDDEN)
    return found


def hidden(positions: Slots) -> Slots:
    """What stands for hidden tokens at these positions."""
    return HIDDEN - positions


def shown(tokens: Slots) -> Slots:
    """The positions of tokens, hidden or not."""
    found: Slots = np.where(tokens <= HIDDEN, HIDDEN - tokens, tokens)
    return found
