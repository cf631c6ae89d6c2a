"""Checks the files of a program."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from inferlet_sdk.guest.packages.package import COMPILED, PURE
from inferlet_sdk.tracebacks.hints import advice_on as advice_on_error

from ...client.programs.packages import entry_of
from ...errors import BadProgram, BadRequest
from .findings import Finding
from .modules import GUEST, advice_on, imports, is_there
from .walk import Walk

MOST_SOURCE = 200
"""Characters of its line that a finding shows."""
NEWER = re.compile(
    r"""\s*(async\s+def|def|class)\s+\w+\s*\[|\s*type\s+\w+\b.*=|\s*except\b[^(]*,|.*\b([fF][rR]?|[rR]?[tT]|[rR][fF]|[tT][rR])["']"""
)
"""Lines that newer versions of Python may take: type parameters, f-strings and t-strings, `except A, B`."""
NO_ENTRY = "decorate a function with @inferlet, or name it `main`: async def main(args)"


def check(path: Path) -> list[Finding]:
    """All findings in a file or a folder, in order. Raises BadRequest."""
    if path.suffix in (".zip", ".whl", ".wasm"):
        raise BadRequest(f"{path} is no source: give a Python file, or the folder that was packed")
    if path.is_file():
        return sorted(_check_file(path, path.name, set(), is_entry=True))
    if not path.is_dir():
        raise BadRequest(f"there is no file or folder {path}")
    entry = entry_of(path).name
    files = {file.relative_to(path).as_posix(): file for file in sorted(path.rglob("*.py"))}
    files = {name: file for name, file in files.items() if not _is_left_out(name)}
    wheels = sorted(path.rglob("*.whl"))
    own = set(_modules(files)) | {_name for wheel in wheels for _name in _modules(_contents(wheel))}
    if (path / "__init__.py").is_file():
        own |= {path.resolve().name, *(f"{path.resolve().name}.{name}" for name in own)}
    found = [each for name, file in files.items() for each in _check_file(file, name, own, is_entry=name == entry)]
    return sorted([*found, *(each for wheel in wheels for each in _check_wheel(wheel, wheel.relative_to(path)))])


def _is_left_out(name: str) -> bool:
    parts = name.split("/")
    test = parts[-1].startswith("test_") or parts[-1] == "conftest.py"
    return test or any(part.startswith(".") or part in ("__pycache__", "venv", "tests") for part in parts)


def _modules(names: Iterable[str]) -> Iterator[str]:
    for name in names:
        if name.endswith(".py"):
            yield name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _contents(wheel: Path) -> list[str]:
    """Paths in a wheel; none if it cannot be read."""
    import zipfile

    try:
        with zipfile.ZipFile(wheel) as content:
            return content.namelist()
    except (OSError, zipfile.BadZipFile):
        return []


def _check_wheel(wheel: Path, name: Path) -> Iterator[Finding]:
    """What an upload refuses in a wheel."""
    contents = _contents(wheel)
    if not contents:
        yield Finding(name.as_posix(), 1, 1, "this is no wheel that can be read", "download it again")
    compiled = next((path for path in contents if path.endswith(COMPILED)), None)
    if compiled is not None:
        yield Finding(name.as_posix(), 1, 1, f"the wheel has compiled code ({compiled}), which cannot run here", PURE)


def check_syntax(path: Path) -> None:
    """Raises BadProgram for a file, or the main file of a folder, that is certainly no Python."""
    file = entry_of(path) if path.is_dir() else path
    if file.suffix == ".py":
        text = _read(file)
        with suppress(_Newer):
            found = _parse(file, file.name, text)
            if isinstance(found, Finding):
                raise BadProgram(f"the program cannot be used:\n{found}")


class _Newer(BadRequest):
    """What this Python cannot tell."""


def _read(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise BadRequest(f"cannot read {path}: {error}") from None


def _source(text: str, line: int) -> str:
    lines = text.splitlines()
    return lines[line - 1].strip()[:MOST_SOURCE] if 0 < line <= len(lines) else ""


def _parse(path: Path, name: str, text: str) -> ast.Module | Finding:
    try:
        tree = ast.parse(text)
        compile(text, name, "exec", dont_inherit=True)  # which finds more, such as an `await` outside of coroutines
    except (SyntaxError, ValueError, RecursionError) as error:
        line, column = getattr(error, "lineno", None) or 1, getattr(error, "offset", None) or 1
        newer = NEWER.match(_source(text, line)) or str(error).startswith("f-string")  # its last line is told
        if isinstance(error, SyntaxError) and sys.version_info < GUEST and newer:
            raise _Newer(
                f"{path}, line {line}: this Python cannot check newer syntax, if it is that ({error.msg}): the sandbox "
                f"has {GUEST[0]}.{GUEST[1]}, so check it with that"
            ) from None
        message, advice = f"{type(error).__name__}: {getattr(error, 'msg', error)}", advice_on_error(error)
        return Finding(name, line, column, message, advice or "this is no Python", _source(text, line))
    return tree


def _check_file(path: Path, name: str, own: set[str], *, is_entry: bool) -> Iterator[Finding]:
    text = _read(path)
    tree = _parse(path, name, text)
    if isinstance(tree, Finding):
        yield tree
        return

    def finding(line: int, column: int, message: str, advice: str) -> Finding:
        return Finding(name, line, column, message, advice, _source(text, line))

    for node, module in imports(tree):
        if not is_there(module, own):
            message = f"the sandbox has no module {module!r}"
            yield finding(node.lineno, node.col_offset + 1, message, advice_on(module))
    walk = Walk(tree, is_entry)
    for at, message, advice in walk.run():
        yield finding(at.lineno, at.col_offset + 1, message, advice)
    if is_entry:
        yield from (finding(line, 1, message, advice) for line, message, advice in _check_entry(tree, walk))


def _check_entry(tree: ast.Module, walk: Walk) -> Iterator[tuple[int, str, str]]:
    names = {name for node in tree.body for name in _bound(node)}
    if not walk.is_marked and "main" not in names and "*" not in names:
        yield 1, "the program has no entry", NO_ENTRY
    for node in walk.entries[:-1]:
        advice = f"only the last one runs (line {walk.entries[-1].lineno}): remove @inferlet here"
        yield node.lineno, f"several functions are marked with @inferlet, and `{node.name}` is not the last", advice


def _bound(node: ast.stmt) -> Iterator[str]:
    for each in ast.walk(node):
        match each:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.Name(id=name, ctx=ast.Store()):
                yield name
            case ast.alias(name=name, asname=other):
                yield other or name
