"""What a tenant keeps: names and hashes, and what a reference means."""

from __future__ import annotations

import hashlib
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from pie_control.errors import BadRequest, UnknownName
from pie_control.programs.shelf import Kept, Shelf, check_name

HASHES = [hashlib.sha256(bytes([number])).hexdigest() for number in range(6)]
hashes = st.sampled_from(HASHES)
names = st.sampled_from(["a", "b", "story", "abcdef1"])


@pytest.mark.parametrize("name", ["deadbeef", "5501be2741b3", "DEADBEEF00", "0" * 64, "f" * 8])
def test_a_name_must_not_look_like_a_hash(name: str) -> None:
    with pytest.raises(BadRequest, match="looks like the hash of a program: choose"):
        check_name(name)


@pytest.mark.parametrize("name", ["x" * 129, "a\x1b[31mred", "line\nline", "tab\t", "\u202eevil"])
def test_a_name_is_short_and_printable(name: str) -> None:
    with pytest.raises(
        BadRequest, match=f"at most 128 printable characters, and {re.escape(ascii(name[:128]))} is none"
    ):
        check_name(name)


@pytest.mark.parametrize("name", ["a/b", "/", ".", ".."])
def test_a_name_must_not_look_like_a_file(name: str) -> None:
    with pytest.raises(BadRequest, match="means a file"):
        check_name(name)


@pytest.mark.parametrize("name", ["", "story", "abcdef1", "deadbeef.v2", "deadbeefs", "größe", "two words", "x" * 128])
def test_other_names_are_accepted(name: str) -> None:
    check_name(name)


@given(text=st.text(max_size=80), program=hashes)
def test_no_accepted_name_can_stand_for_the_hash_of_another_program(text: str, program: str) -> None:
    """Whatever somebody calls a program: a hash, and a beginning that can be given for one, mean what they meant."""
    shelf = Shelf()
    shelf.put(program)
    try:
        check_name(text)
    except BadRequest:
        return
    shelf.put("e" * 64, text)
    for length in (8, 12, 40, 64):
        assert shelf.find(program[:length]) == program


def test_a_beginning_must_be_long_enough_and_unique() -> None:
    shelf = Shelf()
    shelf.put("ab" * 32)
    with pytest.raises(UnknownName, match="upload it first"):
        shelf.find("abababa")
    shelf.put("ab" * 30 + "cdcd")
    with pytest.raises(BadRequest, match="2 programs have hashes that begin with 'abababab': give more characters"):
        shelf.find("ab" * 4)
    assert shelf.find("ab" * 32) == "ab" * 32


def test_a_program_keeps_its_names_in_order_its_last_file_and_its_date() -> None:
    shelf = Shelf()
    for name, file in (("", "old"), ("a", "new"), ("b", "")):
        shelf.put(HASHES[0], name, file, uploaded=5.0)
    assert shelf[HASHES[0]] == Kept(["a", "b"], "new", 5.0)
    shelf.put(HASHES[1], "b")
    assert (shelf[HASHES[0]].names, shelf[HASHES[1]].names) == (["a"], ["b"])
    with pytest.raises(UnknownName):
        shelf.find("new")


class Shelves(RuleBasedStateMachine):
    """A shelf against two plain maps."""

    def __init__(self) -> None:
        super().__init__()
        self.shelf = Shelf()
        self.programs: set[str] = set()
        self.named: dict[str, str] = {}

    @rule(program=hashes, name=st.just("") | names)
    def put(self, program: str, name: str) -> None:
        self.shelf.put(program, name)
        self.programs.add(program)
        if name:
            self.named[name] = program

    @rule(program=hashes)
    def remove(self, program: str) -> None:
        if program in self.programs:
            self.shelf.remove(program)
            self.programs.remove(program)
            self.named = {name: other for name, other in self.named.items() if other != program}

    @invariant()
    def agrees(self) -> None:
        assert set(self.shelf.programs) == self.programs
        assert len(self.shelf) == len(self.programs)
        listed = {name: program for program in self.shelf.programs for name in self.shelf[program].names}
        assert listed == self.named
        assert self.shelf.names == len(listed)
        for name, program in self.named.items():
            assert self.shelf.find(name) == self.shelf.named(name) == program
        for program in HASHES:
            if program in self.programs:
                assert self.shelf.find(program) == program
            else:
                with pytest.raises(UnknownName):
                    self.shelf.find(program)


TestShelves = Shelves.TestCase
