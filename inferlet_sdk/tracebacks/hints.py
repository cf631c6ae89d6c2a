"""What to do about an error: the call that failed, with its arguments, and advice on mistakes that many make."""

from __future__ import annotations

import inspect
import reprlib
import sys
import types
from collections.abc import Callable
from typing import Any

_SHOWN_ARGUMENTS = 6

_short = reprlib.Repr()
_short.maxstring = _short.maxother = 40
_short.maxlist = _short.maxtuple = _short.maxdict = _short.maxset = 4

_ARGUMENTS = "arguments of the launch are parameters of `main`: `async def main(args, topic: str = 'bees')`"

ADVICE: tuple[tuple[type[BaseException], str, str], ...] = (
    (
        RuntimeError,
        "cannot be called from a running event loop",
        "the inferlet's event loop runs already: write `await ...` instead of `asyncio.run(...)`",
    ),
    (TypeError, "'async for' requires an object with __aiter__ method, got coroutine", "write `await` in front of it"),
    (TypeError, "'coroutine' object", "a call of an `async def` was not awaited: write `await ...`"),
    (TypeError, '(not "coroutine")', "a call of an `async def` was not awaited: write `await ...`"),
    (TypeError, "unhashable type: 'list'", "a list cannot be a key; a list of tasks is given as `gather(*tasks)`"),
    (TypeError, "not coroutine", "a call of an `async def` was not awaited: write `await ...`"),
    (AttributeError, "'coroutine' object", "a call of an `async def` was not awaited: write `(await ...)`"),
    (TypeError, "a coroutine was expected", "a call of the host is a task by `asyncio.ensure_future(...)`"),
    (TypeError, "object Context can't be used in 'await'", "this call needs no `await`: leave it out"),
    (TypeError, "object Generation can't be used in 'await'", "iterate with `async for`, or `await args.stream(...)`"),
    (TypeError, "'Context' object can't be awaited", "this call needs no `await`: leave it out"),
    (TypeError, "'Generation' object can't be awaited", "iterate with `async for`, or `await args.stream(...)`"),
    (SyntaxError, "'await' outside", "make the function around it an `async def`"),
    (SyntaxError, "outside async function", "make the function around it an `async def`"),
    (
        RuntimeError,
        "can't start new thread",
        "an inferlet has no threads: `asyncio.create_task` or `gather` runs tasks",
    ),
    (
        OSError,
        "[Errno 2] Permission denied",
        "an inferlet has no sockets: `http_get` and `http_post` of inferlet_sdk ask servers",
    ),
    (OSError, "does not support processes", "do that in a client of the inferlet"),
    (AttributeError, "module 'os' has no attribute", "the sandbox has no operating system: do that in a client"),
    (AttributeError, "module 'inferlet_sdk", "`pie check FILE` tells which names there are"),
    (AttributeError, "'Context' object has no attribute", "`pie check FILE` tells which calls there are"),
    (AttributeError, "'Args' object has no attribute", _ARGUMENTS),
    (TypeError, "'Args' object is not subscriptable", _ARGUMENTS),
    (AttributeError, "'Generation' object has no attribute", "`pie check FILE` tells which calls there are"),
    (ImportError, "from 'inferlet_sdk", "`pie check FILE` tells which names there are"),
    (
        TypeError,
        "main() missing 1 required positional argument: 'args'",
        "the server calls `main`: leave this call out",
    ),
    (OverflowError, "index-sized integer", "a program has less than 4 GiB of memory: keep less at a time"),
    (MemoryError, "", "keep less at a time; `traits.usage().max_memory_bytes` is what the server gives an inferlet"),
    (FileNotFoundError, "", "the sandbox has no files: data files of the program are read by `program_files()`"),
    (EOFError, "", "an inferlet has no stdin: `await args.receive()` gives the next message of the client"),
    (ModuleNotFoundError, "", "`pie check FILE` tells what the sandbox lacks"),
)
"""Class of an error, a part of its message, what to do."""


def advice_on(error: BaseException) -> str:
    """What to do about it; nothing for most errors, whose messages say so themselves."""
    try:
        message = str(error)
    except Exception:
        return ""
    found = (advice for kind, part, advice in ADVICE if isinstance(error, kind) and part in message)
    return next(found, "")


def failing_call(error: BaseException, is_own: Callable[[str], bool]) -> str:
    """The call of the SDK that the program made last, if the error came from there. `is_own`: whether a file is the
    program's."""
    found: types.FrameType | None = None
    begun, trace = False, error.__traceback__
    while trace is not None:
        frame = trace.tb_frame
        if is_own(frame.f_code.co_filename):
            begun, found = True, None
        elif begun and found is None:
            found = frame
        trace = trace.tb_next
    if found is None or found.f_globals.get("__name__", "").partition(".")[0] != __name__.partition(".")[0]:
        return ""
    return _shown(found)


def _shown(frame: types.FrameType) -> str:
    """Context.generate(max_tokens='many'): name and arguments of a function that runs."""
    code = frame.f_code
    name = getattr(code, "co_qualname", code.co_name).removesuffix(".__init__")
    defaults = _defaults(frame, name)
    if code.co_name != "__init__" and "self" in frame.f_locals and "<" not in name:  # of a class derived from that
        name = f"{type(frame.f_locals['self']).__name__}.{code.co_name}"
    if any(part.startswith("_") for part in name.split(".")) or "<" in name:
        return ""
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    given = [(one, frame.f_locals[one]) for one in names if one in frame.f_locals and one not in ("self", "cls")]
    free, more_named = _open_ended(frame)
    given = [(one, value) for one, value in given if not (one in defaults and defaults[one] is value)] + more_named
    shown = [_text(value) for value in free] + [f"{one}={_text(value)}" for one, value in given]
    more = ", ..." if len(shown) > _SHOWN_ARGUMENTS else ""
    return f"{name}({', '.join(shown[:_SHOWN_ARGUMENTS])}{more})"


def _open_ended(frame: types.FrameType) -> tuple[list[Any], list[tuple[str, Any]]]:
    """What `*args` and `**kwargs` of a function hold."""
    code, at = frame.f_code, frame.f_code.co_argcount + frame.f_code.co_kwonlyargcount
    free: list[Any] = []
    named: list[tuple[str, Any]] = []
    if code.co_flags & inspect.CO_VARARGS:
        free = list(frame.f_locals.get(code.co_varnames[at], ()))
        at += 1
    if code.co_flags & inspect.CO_VARKEYWORDS:
        named = list(frame.f_locals.get(code.co_varnames[at], {}).items())
    return free, named


def _defaults(frame: types.FrameType, name: str) -> dict[str, Any]:
    """The function's parameters are left out: they say nothing."""
    function: Any = sys.modules.get(frame.f_globals.get("__name__", ""))
    for part in name.split("."):
        function = getattr(function, part, None)
    if isinstance(function, type):
        function = vars(function).get("__init__")
    code, values = frame.f_code, getattr(function, "__defaults__", None) or ()
    positional = code.co_varnames[: code.co_argcount]
    return dict(zip(positional[len(positional) - len(values) :], values, strict=True)) | (
        getattr(function, "__kwdefaults__", None) or {}
    )


def _text(value: object) -> str:
    """Short, and safe for objects whose `repr` fails or runs for long."""
    try:
        text = _short.repr(value)
    except Exception:
        return f"<{type(value).__name__}>"
    return text if len(text) <= 80 else text[:77] + "..."
