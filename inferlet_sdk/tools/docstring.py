"""Descriptions from docstrings, with the sections that Google's style has."""

from __future__ import annotations

import re
from typing import NamedTuple

_SECTION = re.compile(r"(Args|Arguments|Parameters|Returns|Return|Raises|Yields|Examples?|Notes?):\s*")
_PARAMETERS = ("Args", "Arguments", "Parameters")
_PARAMETER = re.compile(r"(\s*)\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)")


class Docstring(NamedTuple):
    """What a docstring tells of a function, and of its parameters by name."""

    description: str
    parameters: dict[str, str]


def read_docstring(text: str) -> Docstring:
    """Reads a docstring without indentation (see `inspect.getdoc`)."""
    description: list[str] = []
    parameters: list[str] = []
    section = description
    for line in text.splitlines():
        found = _SECTION.fullmatch(line)
        if found is not None:
            section = parameters if found[1] in _PARAMETERS else []
            continue
        if line and not line[0].isspace():
            section = description  # a paragraph behind a section
        section.append(line)
    paragraphs = "\n".join(description).strip().split("\n\n")
    return Docstring("\n\n".join(" ".join(one.split()) for one in paragraphs), _read_parameters(parameters))


def _read_parameters(lines: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    name, indent = "", None
    for line in lines:
        match = _PARAMETER.fullmatch(line)
        if match is not None and (indent is None or len(match[1]) <= indent):
            indent, name = len(match[1]), match[2]
            found[name] = match[3].strip()
        elif name and line.strip():
            found[name] = f"{found[name]} {line.strip()}".strip()
    return found
