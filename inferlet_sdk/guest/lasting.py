"""The objects of the interpreter's snapshot, which the host makes immortal, so that instances do not count their
references.

To count a reference is to write, and to write to a page of the snapshot copies it. An instance that has run a short
program had written to 520 pages; to half of them only to count references to objects that live as long as it does. No
Python code can make an object immortal, so the build does it in the snapshot, at the addresses that are found here
(`pie_control.programs.lasting`).
"""

from __future__ import annotations

import gc
from array import array
from collections.abc import Iterable
from types import CodeType
from typing import Any

MARK = 0x2B6C1D93, 0x1E75A0C7, 0x34D9F26B, 0x0F83B45E
"""Stands before the addresses. As long as they are numbers of Python, they do not lie side by side."""


def addresses() -> array[int]:
    """What the build looks for in the snapshot, as u32: the mark, the number of addresses, and the addresses. Some may
    be of objects that are gone when the snapshot is taken."""
    found = found_objects()
    return array("I", [*MARK, len(found), *sorted(found)])


def found_objects() -> set[int]:
    """Addresses of all objects that the garbage collector knows, and of all to which these refer."""
    found: set[int] = set()
    waiting: list[Any] = []
    passing = {id(found), id(waiting)}
    waiting += gc.get_objects()
    while waiting:
        one = waiting.pop()
        if id(one) not in found and id(one) not in passing:
            found.add(id(one))
            waiting.append(type(one))
            waiting.extend(_parts_of_code(one) if type(one) is CodeType else gc.get_referents(one))
    return found


def _parts_of_code(code: CodeType) -> Iterable[Any]:
    """What the collector does not know of it."""
    texts = code.co_filename, code.co_name, code.co_qualname, code.co_linetable, code.co_exceptiontable
    return code.co_consts, code.co_names, *code.co_varnames, *code.co_cellvars, *code.co_freevars, *texts
