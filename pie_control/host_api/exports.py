"""exports.wit: what an import gives."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from ..calls.arrays import packed
from ..calls.values import Import
from ..resources.intervals import intervals_of
from ..resources.tables.slots import EMPTY, HIDDEN, is_token, shown
from .guest import Guest
from .suspending import suspending, when_done


def _take_import(guest: Guest, future: int) -> tuple[int, int, str]:
    value: Import = guest.futures.take(future, Import)
    first, count = guest.take_import(future)
    return first, count, _about(value)


@suspending
def await_import(guest: Guest, future: int) -> Any:
    return when_done(guest, future, lambda: _take_import(guest, future))


def _take_prefix(guest: Guest, future: int) -> tuple[int, int]:
    guest.futures.take(future, Import)
    return guest.take_import(future)


@suspending
def await_prefix(guest: Guest, future: int) -> Any:
    return when_done(guest, future, lambda: _take_prefix(guest, future))


def _about(value: Import) -> str:
    positions = np.where(is_token(value.positions), shown(value.positions), EMPTY)
    hidden = intervals_of(np.flatnonzero(value.positions <= HIDDEN))
    about = {
        "tokens": packed(value.tokens, "<u4"),
        "positions": packed(positions, "<i4"),
        "hidden": [number for begin, end in hidden for number in (begin, end - begin)],
    }
    return json.dumps(about)
