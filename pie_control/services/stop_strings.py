"""Finds the end of a text that comes in pieces: the first of some strings that stop it.

A piece is let through as far as it cannot belong to a stop string that is still incomplete; the rest is held back until
it is certain. Each string is followed by its prefix function (Knuth, Morris, Pratt), so a character costs the same
whatever was written before it.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import InvalidArgument

MAX_STRINGS = 16
MAX_CHARACTERS = 1024
"""Most characters of all stop strings together. What is held back is shorter than the longest of them."""


class StopStrings:
    """Lets a text through up to the first of the strings."""

    def __init__(self, strings: Sequence[str], held: str = "") -> None:
        """`held`: text before the first piece that an earlier one held back, for the same strings. Raises
        InvalidArgument."""
        _check(strings)
        self._strings = [(string, _prefix_function(string)) for string in strings]
        self._matched = [0] * len(strings)  # length of the prefix of each string with which the text ends
        self._held = ""
        self.found = False
        """Whether a stop string has come. Nothing is let through any more."""
        if self.push(held):
            raise InvalidArgument(f"{held!r} is not the beginning of a stop string, so it was not held back")

    def push(self, piece: str) -> str:
        """What is let through when this text is added."""
        if not self._strings or self.found:
            return "" if self.found else piece
        text, before = self._held + piece, len(self._held)
        places = [place for index in range(len(self._strings)) if (place := self._follow(index, piece)) is not None]
        if places:
            self.found, self._held = True, ""
            return text[: before + min(places)]
        certain = len(text) - max(self._matched)
        self._held = text[certain:]
        return text[:certain]

    def rest(self) -> str:
        """What is held back, for a text that has ended."""
        rest, self._held = self._held, ""
        return rest

    def _follow(self, index: int, piece: str) -> int | None:
        """Where in the piece the string first begins, if it ends there; negative: before the piece."""
        string, prefixes = self._strings[index]
        matched, place = self._matched[index], None
        for end, character in enumerate(piece, 1):
            if matched == len(string):
                matched = prefixes[matched - 1]
            while matched and string[matched] != character:
                matched = prefixes[matched - 1]
            if string[matched] == character:
                matched += 1
                if matched == len(string) and place is None:
                    place = end - matched
        self._matched[index] = matched
        return place


def _check(strings: Sequence[str]) -> None:
    size = sum(map(len, strings))
    if not all(strings):
        raise InvalidArgument("a stop string must not be empty")
    if len(strings) > MAX_STRINGS or size > MAX_CHARACTERS:
        raise InvalidArgument(
            f"{len(strings)} stop strings of {size} characters are more than {MAX_STRINGS} of {MAX_CHARACTERS}: "
            "look for them yourself, in the texts that take-run gives"
        )


def _prefix_function(string: str) -> list[int]:
    """For each beginning of the string: the length of the longest beginning, other than itself, with which it ends."""
    lengths = [0] * len(string)
    for place in range(1, len(string)):
        length = lengths[place - 1]
        while length and string[length] != string[place]:
            length = lengths[length - 1]
        lengths[place] = length + (string[length] == string[place])
    return lengths
