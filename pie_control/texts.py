"""Sizes of texts, texts cut to size, and what is wrong with JSON texts."""

from __future__ import annotations

import re

import msgspec

_HALF = re.compile(
    rb"\\u[dD](?:[89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD])[c-fC-F])"
)
"""Half of a surrogate pair in JSON: a first one without a second one, or the other way round."""


def byte_size(text: str) -> int:
    """Bytes of a text in UTF-8."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def cut(text: str, most: int) -> str:
    """The beginning of a text: at most `most` bytes in UTF-8, and whole characters."""
    if len(text) <= most and byte_size(text) <= most:
        return text
    return text[:most].encode("utf-8", "replace")[:most].decode("utf-8", "ignore")  # a character has one byte at least


def cut_middle(text: str, most: int) -> str:
    """Beginning and end of a text, with a note of what is left out between: at most `most` bytes in UTF-8, and whole
    characters. Tracebacks tell at their end what happened."""
    if len(text) <= most and byte_size(text) <= most:
        return text
    note = f"\n[... {len(text)} characters, cut to {most} bytes ...]\n"
    room = most - len(note)
    if room < 2:
        return cut(text, most)
    half = room // 2
    end = text[len(text) - half :].encode("utf-8", "replace")[-half:].decode("utf-8", "ignore")
    return cut(text, half) + note + end


def json_fault(text: bytes, error: Exception) -> str:
    """Why msgspec could not decode a JSON text. Of half of a surrogate pair it says that the text is truncated."""
    if type(error) is msgspec.DecodeError and _HALF.search(text.replace(rb"\\", b"__")):
        return r'it has half of a surrogate pair, as in "\ud83d", which is no text: leave it out'
    return str(error)
