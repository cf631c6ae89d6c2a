"""Objects of the Python guest's snapshot are immortal, and nothing else of it changes."""

from __future__ import annotations

import struct
import subprocess
import sys

import pytest

from inferlet_sdk.guest import lasting as in_guest
from pie_control.errors import ConfigError
from pie_control.programs.lasting import DATA, IMMORTAL, MARK, MODULE, MODULES, made_immortal

TYPE, LIVE, BUSY, OLD, FREED, REUSED, BEYOND = 2000, 2100, 2200, 2300, 2400, 2500, 5000
"""Addresses of objects that are listed."""
TABLE = 3000


def number(value: int) -> bytes:
    """In LEB128."""
    low, rest = value & 127, value >> 7
    return bytes([low | 128]) + number(rest) if rest else bytes([low])


def section(kind: int, body: bytes) -> bytes:
    return bytes([kind]) + number(len(body)) + body


def segment(address: int, data: bytes) -> bytes:
    offset = number(address) if address & 64 == 0 or address > 127 else number(address | 128)
    return b"\0\x41" + offset + b"\x0b" + number(len(data)) + data


def component(memory: dict[int, bytes]) -> bytes:
    segments = number(len(memory)) + b"".join(segment(address, data) for address, data in memory.items())
    module = MODULE + section(1, b"types") + section(DATA, segments)
    other = MODULE + section(DATA, number(1) + segment(64 * 128, b"nothing of it"))
    return b"\0asm\x0d\0\1\0" + section(MODULES, other) + section(7, b"types") + section(MODULES, module)


def an_object(references: int, kind: int = TYPE) -> bytes:
    return struct.pack("<III", references, kind, 77)


def memory(references: int) -> dict[int, bytes]:
    """With some objects of so many references."""
    listed = [TYPE, LIVE, BUSY, OLD, FREED, REUSED, BEYOND]
    return {
        TYPE: an_object(references),
        LIVE: an_object(references),
        BUSY: an_object(references) + b"and more",
        OLD: an_object(IMMORTAL),
        FREED: an_object(2_000_000),  # the address of the next free block
        REUSED: b"some bytes that are no object",
        2600: an_object(1),  # that is not listed
        TABLE: MARK + struct.pack(f"<{1 + len(listed)}I", len(listed), *listed),
    }


def test_the_counts_of_listed_objects_change_and_nothing_else() -> None:
    assert made_immortal(component(memory(3))) == component(memory(IMMORTAL))


def test_both_sides_have_the_same_mark() -> None:
    assert struct.pack("<IIII", *in_guest.MARK) == MARK


@pytest.mark.parametrize("without", [TABLE, None])
def test_a_guest_without_a_list_is_refused(without: int | None) -> None:
    given = {} if without is None else {k: v for k, v in memory(3).items() if k != without}
    with pytest.raises(ConfigError, match="does not say where its objects are"):
        made_immortal(component(given))


FINDS_WHAT_LIVES = """
from inferlet_sdk.guest.lasting import MARK, found_objects

def number(value):
    return value + 1_000_000

found, code = found_objects(), number.__code__
wanted = number, code, code.co_consts, code.co_varnames[0], type(number), MARK, int
print([one for one in wanted if id(one) not in found])
"""


def test_what_lives_is_found_with_its_types_and_the_parts_of_code() -> None:
    """In a process of its own: in this one live millions of objects."""
    told = subprocess.run([sys.executable, "-c", FINDS_WHAT_LIVES], capture_output=True, text=True, check=True)
    assert told.stdout == "[]\n"
