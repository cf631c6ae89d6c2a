"""Runs a Python inferlet, a text or a package: compiles it, finds the entry, calls it and sets the result."""

from __future__ import annotations

import inspect
import linecache
import sys
import types
from collections.abc import Callable, Iterable
from typing import Any, TypeVar, overload

from inferlet_sdk import event_loop, traits
from inferlet_sdk.generation.generation import Generation
from inferlet_sdk.guest.arguments import Args, bind
from inferlet_sdk.guest.command_line import UsageError
from inferlet_sdk.guest.forgotten import advice_on_forgotten, not_awaited
from inferlet_sdk.guest.packages.loading import Compiled, begin
from inferlet_sdk.schemas.writing import one_level, plain
from inferlet_sdk.tracebacks.report import format_error

F = TypeVar("F", bound=Callable[..., Any])

_entries: list[Callable[..., Any]] = []


class ProgramFailed(Exception):
    """The program ended with an error; the message is for the user, with halves of surrogate pairs written out."""

    def __init__(self, message: str) -> None:
        super().__init__(message.encode(errors="backslashreplace").decode())


_reusable: list[Callable[..., Any]] = []


@overload
def inferlet(function: F) -> F: ...


@overload
def inferlet(*, reuse: bool) -> Callable[[F], F]: ...


def inferlet(function: Any = None, *, reuse: bool = False) -> Any:
    """Marks the entry of an inferlet: `async def main(args)` or a plain `def`. The last marked function counts.

    `reuse`: an instance in which it has returned may serve later launches of the program by the same tenant. These
    call the function again, and cost a fraction of a launch; the modules are as the launch before has left them. What
    belongs to an inferlet (contexts, futures, handles, tasks) ends with each launch, so a module must not keep it.
    """
    if function is None:
        return lambda function: _mark(function, reuse)
    return _mark(function, reuse)


def _mark(function: F, reuse: bool) -> F:
    _entries.append(function)
    if reuse:
        _reusable.append(function)
    return function


def run_program(name: str, text: str, code: str = "") -> Callable[..., Any] | None:
    """Runs a program to its end and sets its result; raises ProgramFailed with the trimmed traceback. Returns its entry
    if it has returned and may be run again."""
    return run_entry(lambda: _load(name, text, code), name)


def run_entry(load: Callable[[], Callable[..., Any]], name: str) -> Callable[..., Any] | None:
    """Runs a program whose entry `load` gives; see `run_program`. KeyboardInterrupt goes on: outside of the sandbox,
    somebody wants to end the program."""
    try:
        with not_awaited() as forgotten:
            entry = load()
            _run(entry, name)
        if forgotten:
            raise UsageError(advice_on_forgotten(forgotten))
        return entry if entry in _reusable else None
    except KeyboardInterrupt:
        raise
    except UsageError as error:
        raise ProgramFailed(str(error)) from None
    except SystemExit as end:
        _check_exit(end.code)
        return None
    except BaseException as error:
        raise ProgramFailed(format_error(error)) from None
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def _run(entry: Callable[..., Any], name: str) -> None:
    args = Args()
    if wanted := args.environment.get("main"):  # `launch` of a function
        asked = vars(sys.modules["__main__"]).get(wanted)
        if not inspect.isfunction(asked):
            raise UsageError(f"{name} has no function {wanted!r}, which the environment entry 'main' asks for")
        entry = asked
    value = bind(entry, args, name)()
    if inspect.iscoroutine(value):
        value = event_loop.run(value)
    if value is not None:  # a result that the program has set stays
        _set_result(value)


def _load(name: str, text: str, code: str) -> Callable[..., Any]:
    """Executes the text as module `__main__`; returns its entry."""
    module = types.ModuleType("__main__")
    module.__file__ = name
    sys.modules["__main__"] = module
    if code:
        return entry_of(module, begin(Compiled(code), module), name)
    linecache.cache[name] = (lambda: text,)  # lazy: only tracebacks need it
    return entry_of(module, compile(text, name, "exec", dont_inherit=True), name)


def entry_of(module: types.ModuleType, code: types.CodeType, name: str) -> Callable[..., Any]:
    """Executes the code of a program in its module; returns its entry. Raises UsageError."""
    _entries.clear()
    _reusable.clear()
    exec(code, module.__dict__)
    entry = _entries[-1] if _entries else module.__dict__.get("main")
    if not callable(entry):
        raise UsageError(f"{name} has no entry: decorate a function with @inferlet, or name it `main`")
    return entry


def _set_result(value: Any) -> None:
    try:
        traits.set_result(plain(value))
    except (TypeError, ValueError) as error:
        kind = type(value).__name__
        raise UsageError(f"the result ({kind}) cannot be sent as JSON: {error}; {_result_advice(value)}") from None


def _result_advice(value: Any) -> str:
    if isinstance(value, Generation):
        return "`await args.stream(...)` or `await ctx.generate_until(...)` gives its text"
    if inspect.isawaitable(value):
        if inspect.iscoroutine(value):
            value.close()
        return "it was not awaited: write `await` in front of what you return"
    place = _not_json(value, "the result")
    return f"{place} is at fault; {_RETURN}" if place else _RETURN


_RETURN = "return text, numbers, lists, dicts, sets, dataclasses, enums and dates"


def _not_json(value: Any, place: str, levels: int = 20) -> str:
    """Where in a value something stands that is none; "": it is the value itself."""
    parts: Iterable[tuple[Any, Any]] = ()
    value = one_level(value)
    if isinstance(value, dict):
        parts = value.items()
    elif isinstance(value, list | tuple):
        parts = enumerate(value)
    for key, part in parts if levels else ():
        here = f"{place}[{key!r}]"
        if not isinstance(one_level(part), str | int | float | bool | None | dict | list | tuple):
            return f"{here}, a {type(part).__name__},"
        if found := _not_json(part, here, levels - 1):
            return found
    return ""


def _check_exit(code: Any) -> None:
    if code not in (None, 0):
        raise ProgramFailed(code if isinstance(code, str) else f"exited with code {code}")
