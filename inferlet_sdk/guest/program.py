"""Runs the text of a Python inferlet: compile, find the entry, call it, hand over its result."""

from __future__ import annotations

import base64
import inspect
import linecache
import marshal
import random
import sys
import types
from collections.abc import Callable
from typing import Any, TypeVar

from inferlet_sdk import event_loop, traits
from inferlet_sdk.guest.arguments import Args, UsageError, bind
from inferlet_sdk.tracebacks import format_error

F = TypeVar("F", bound=Callable[..., Any])

_entries: list[Callable[..., Any]] = []


class ProgramFailed(Exception):
    """The program ended with an error; the message is for its user."""


def inferlet(function: F) -> F:
    """Marks the function that an inferlet starts with: `async def main(args)` or a plain `def`. The last one counts."""
    _entries.append(function)
    return function


def compile_source(name: str, text: str) -> str:
    """Code of a program in a form that later runs take instead of compiling again: base64 of `marshal`."""
    return base64.b64encode(marshal.dumps(compile(text, name, "exec", dont_inherit=True))).decode()


def run_program(name: str, text: str, code: str = "") -> None:
    """Runs a program to its end and sets its result. ProgramFailed carries the traceback, trimmed to the program."""
    try:
        _run(name, text, code)
    except UsageError as error:
        raise ProgramFailed(str(error)) from None
    except SystemExit as end:
        _check_exit(end.code)
    except BaseException as error:
        raise ProgramFailed(format_error(error)) from None
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def _run(name: str, text: str, code: str) -> None:
    random.seed()  # the interpreter is a snapshot: without this all inferlets draw the same numbers
    entry = _load(name, text, code)
    value = bind(entry, Args(), name)()
    if inspect.iscoroutine(value):
        value = event_loop.run(value)
    if value is not None:  # a result that was set on the way stays
        _set_result(value)


def _load(name: str, text: str, code: str) -> Callable[..., Any]:
    """Executes the text as module `__main__`; returns its entry."""
    linecache.cache[name] = (lambda: text,)  # lazily: for tracebacks only
    module = types.ModuleType("__main__")
    module.__file__ = name
    sys.modules["__main__"] = module
    _entries.clear()
    compiled = marshal.loads(base64.b64decode(code)) if code else compile(text, name, "exec", dont_inherit=True)
    exec(compiled, module.__dict__)
    entry = _entries[-1] if _entries else module.__dict__.get("main")
    if not callable(entry):
        raise UsageError(f"{name} has no entry: decorate a function with @inferlet, or name it `main`")
    return entry


def _set_result(value: Any) -> None:
    try:
        traits.set_result(value)
    except (TypeError, ValueError) as error:
        kind = type(value).__name__
        advice = "return text, numbers, lists and dicts"
        raise UsageError(f"the result ({kind}) cannot be sent as JSON: {error}; {advice}") from None


def _check_exit(code: Any) -> None:
    if code not in (None, 0):
        raise ProgramFailed(code if isinstance(code, str) else f"exited with code {code}")
