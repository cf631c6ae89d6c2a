"""A program of this interpreter: a file, a folder, or a function of a test, between the SDK and an instance."""

from __future__ import annotations

import contextlib
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from inferlet_sdk import bindings, event_loop
from inferlet_sdk.guest import program as guest_program

from ...client.programs.packages import entry_of, files_of
from ...errors import BadRequest, CallError
from ...host_api import wit_files
from ...sandbox.contract import Contract
from ...sandbox.functions import HostFunction
from .instance import NativeInstance


class HostRefused(Exception):
    """Raised by host functions, as in the sandbox: `value` has code and message."""

    def __init__(self, error: CallError) -> None:
        super().__init__(str(error))
        self.value = SimpleNamespace(code=error.code, message=str(error))


@dataclass(frozen=True)
class Source:
    """What runs: `load` gives the entry. `path` is where it comes from."""

    path: Path
    name: str
    load: Callable[[], Callable[..., Any]]


def source_of(path: Path) -> Source:
    """A Python file, or a folder with `main.py` or `__main__.py`. Raises BadRequest."""
    if path.is_dir():
        return Source(path, path.resolve().name, partial(_load, entry_of(path).resolve(), path.resolve(), path))
    if path.suffix != ".py":
        raise BadRequest(f"{path} cannot run outside of the sandbox: give a Python file, or a folder with main.py")
    return Source(path, path.stem, partial(_load, path.resolve(), path.resolve().parent))


# ---- loading ---------------------------------------------------------------------------------------------------------


def _load(file: Path, folder: Path, data: Path | None = None) -> Callable[..., Any]:
    module = types.ModuleType("__main__")
    module.__file__ = str(file)
    module.__dict__["__loader__"] = DataFiles(data)  # which loads nothing else
    module.__package__ = folder.name if _is_package(folder) else None
    sys.modules["__main__"] = module
    text = file.read_bytes()
    return guest_program.entry_of(module, compile(text, str(file), "exec", dont_inherit=True), file.name)


def _is_package(folder: Path) -> bool:
    return (folder / "__init__.py").is_file() and (folder / "__main__.py").is_file()


class DataFiles:
    """What `inferlet_sdk.program_files` reads of a folder; a program without one has no data files."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    @cached_property
    def files(self) -> dict[str, bytes]:
        folder = self._folder
        if folder is None:
            return {}
        found = [path for path in files_of(folder) if path.suffix != ".py"]
        return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}


# ---- running ---------------------------------------------------------------------------------------------------------


def run(
    source: Source,
    instance: NativeInstance,
    contract: Contract,
    got: Callable[[Sequence[int]], None],
    failed: Callable[[BaseException], None] | None = None,
) -> str | None:
    """Runs a program to its end; returns its error, for people, or None. `got` hears of tokens from the model, `failed`
    of an exception that ends the program, while all that it has is still there. KeyboardInterrupt goes on."""
    with _as_in_the_sandbox(source, host_modules(instance, contract, got)):
        try:
            guest_program.run_entry(source.load, source.name)
        except guest_program.ProgramFailed as failure:
            if failed is not None and failure.__context__ is not None:
                failed(failure.__context__)
            return str(failure)
    return None


TOKENS: dict[str, Callable[[Any], Sequence[int]]] = {
    "take-text": lambda value: [value[0]],
    "take-run": lambda value: value[0],
    "await-scored-token": lambda value: [value[0]],
}
"""Tokens in what functions return."""
SAMPLING: dict[str, Callable[[Sequence[Any]], bool]] = {
    "sample": lambda arguments: arguments[5] == 0,
    "forward": lambda arguments: arguments[9] != 0,
}
"""Functions whose future is that of a token for `await-number`, with these arguments."""


def host_modules(instance: NativeInstance, contract: Contract, got: Callable[[Sequence[int]], None]) -> SimpleNamespace:
    """Modules as componentize-py generates them from the WIT."""
    host = SimpleNamespace(**{name: SimpleNamespace() for name in bindings.INTERFACES})
    edition = contract.editions[0]
    sampled: set[int] = set()  # futures of tokens
    for (interface, name), function in edition.functions.items():
        caller = _caller(instance, function, _tokens_of(name, sampled), got)
        setattr(getattr(host, interface.replace("-", "_")), name.replace("-", "_"), caller)
    for (interface, name), cases in wit_files.current().enums.items():
        constants = {case.upper().replace("-", "_"): case for case in cases}
        setattr(getattr(host, interface.replace("-", "_")), name.title().replace("-", ""), constants)
    return host


def _tokens_of(name: str, sampled: set[int]) -> Callable[[Sequence[Any], Any], Sequence[int]] | None:
    """What tells the tokens that a function gives, by its arguments and its value; None: it gives none. `sampled`:
    futures of tokens."""

    def note(arguments: Sequence[Any], future: int) -> Sequence[int]:
        if SAMPLING[name](arguments):
            sampled.add(future)
        return ()

    if name in TOKENS:
        return lambda _, value: TOKENS[name](value)
    if name in SAMPLING:
        return note
    return (lambda arguments, value: [value] if arguments[0] in sampled else ()) if name == "await-number" else None


def _caller(
    instance: NativeInstance,
    function: HostFunction,
    tokens: Callable[[Sequence[Any], Any], Sequence[int]] | None,
    got: Callable[[Sequence[int]], None],
) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        try:
            value = instance.call(function, *arguments)
        except CallError as error:
            raise HostRefused(error) from None
        if tokens is not None:
            got(tokens(arguments, value))
        return value

    return call


@contextlib.contextmanager
def _as_in_the_sandbox(source: Source, host: SimpleNamespace) -> Iterator[None]:
    """The SDK calls `host`, `asyncio.run` makes its loop, and modules of the program can be imported; then all is as
    before."""
    import asyncio

    folder = source.path if source.path.is_dir() else source.path.parent
    roots = [str(folder.resolve().parent if _is_package(folder) else folder.resolve())]
    roots += [str(wheel.resolve()) for place in (folder, folder / "wheels") for wheel in sorted(place.glob("*.whl"))]
    before = SimpleNamespace(**{name: getattr(bindings, name) for name in bindings.INTERFACES})
    error, main, path, modules = bindings.HostError, sys.modules["__main__"], list(sys.path), set(sys.modules)
    loops = asyncio.new_event_loop, asyncio.events.new_event_loop
    bindings.install(host, HostRefused)
    event_loop.install()
    sys.path[:0] = roots
    try:
        yield
    finally:
        sys.path[:] = path
        for name in _modules_in(roots, set(sys.modules) - modules):
            del sys.modules[name]
        sys.modules["__main__"] = main
        asyncio.new_event_loop, asyncio.events.new_event_loop = loops
        bindings.install(before, error)


def _modules_in(roots: list[str], names: set[str]) -> list[str]:
    """Modules of the program: the next run shall see its files anew."""
    files = {name: getattr(sys.modules[name], "__file__", None) or "" for name in names}
    own = {name: file for name, file in files.items() if "site-packages" not in file}
    return [name for name, file in own.items() if any(file.startswith(root) for root in roots)]
