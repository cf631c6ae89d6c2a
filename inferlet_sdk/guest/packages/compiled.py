"""Compiled programs: a text in which the code, the source and the data files of a program lie one after the other.

It crosses between host and guest in pieces, and a launch reads what it imports. The text is the size of its index, the
index, and the parts; the index and each part are base64. Sources are compressed.
"""

from __future__ import annotations

import base64
import io
import marshal
import zlib
from collections.abc import Iterable, Iterator
from types import CodeType
from typing import NamedTuple

from inferlet_sdk import bindings
from inferlet_sdk.errors import call
from inferlet_sdk.guest.packages.imports import check_imports
from inferlet_sdk.guest.packages.package import BadPackage, Package, SourceModule, read_package

PACKAGE = "\0zip:"
"""What the text of a package begins with; that of a module cannot."""
PIECE = 1 << 20
"""Characters that cross at once; a multiple of 4, as base64 wants."""
SIZE = 12
"""Characters of the size of the index."""

Part = tuple[int, int]
"""Where a part begins, behind the index, and how many characters it has."""


class Module(NamedTuple):
    """A module of a program."""

    file: str
    is_package: bool
    code: Part | None  # None: a folder without `__init__.py`
    source: Part | None


def compile_for_host(name: str) -> None:
    """Compiles the program that the host has. Raises SyntaxError, ValueError, PieError."""
    head = _read(0, len(PACKAGE))
    if head == PACKAGE:
        archive = b"".join(base64.b64decode(piece) for piece in _pieces(len(head)))
        pieces = _compiled(read_package(archive))
    else:
        pieces = compile_source(name, head + "".join(_pieces(len(head))))
    for piece in _joined(pieces):
        call(bindings.guest_source.put_code, piece)


def _joined(pieces: Iterable[str]) -> Iterator[str]:
    """Cuts a text anew, into pieces of PIECE; the last may be shorter."""
    waiting = io.StringIO()
    for piece in pieces:
        for begin in range(0, len(piece), PIECE):
            waiting.write(piece[begin : begin + PIECE])
            if waiting.tell() >= PIECE:
                text = waiting.getvalue()
                yield text[:PIECE]
                waiting = io.StringIO()
                waiting.write(text[PIECE:])
    yield waiting.getvalue()


def _read(begin: int, length: int) -> str:
    text: str = call(bindings.guest_source.read, begin, length)
    return text


def _pieces(begin: int) -> Iterator[str]:
    while piece := _read(begin, PIECE):
        yield piece
        begin += len(piece)


def compile_source(name: str, text: str) -> list[str]:
    """The pieces of the compiled form of a program of one module. Raises SyntaxError, ValueError."""
    check = name.removesuffix(".py")
    return _compiled(Package(check, {check: SourceModule(name, False, text.encode())}, {}))


def _compiled(package: Package) -> list[str]:
    parts: list[str] = []
    size = 0

    def add(data: bytes) -> Part:
        nonlocal size
        parts.append(base64.b64encode(data).decode())
        size += len(parts[-1])
        return size - len(parts[-1]), len(parts[-1])

    modules: dict[str, tuple[str, bool, Part | None, Part | None]] = {}
    first = [package.entry, *(name for name in package.modules if name != package.entry)]
    for name in first:  # the entry comes first: it crosses with the index
        file, is_package, source = package.modules[name]
        if source is None:
            modules[name] = (file, is_package, None, None)
        else:
            code = marshal.dumps(_code(file, source))
            modules[name] = file, is_package, add(code), add(zlib.compress(source))
    files = {path: add(data) for path, data in package.files.items()}
    check_imports(package.entry, {name: one.source for name, one in package.modules.items() if one.source is not None})
    index = base64.b64encode(marshal.dumps((package.entry, modules, files))).decode()
    return [f"{len(index):{SIZE}}", index, *parts]


def _code(file: str, source: bytes) -> CodeType:
    try:
        text = source.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadPackage(f"{file} is not in UTF-8: {error}") from None
    try:
        return compile(text, file, "exec", dont_inherit=True)
    except SyntaxError as error:
        if error.text is None and error.lineno:  # what the parser did not see: the program is no file
            error.text = "".join(text.splitlines(keepends=True)[error.lineno - 1 : error.lineno])
        raise
