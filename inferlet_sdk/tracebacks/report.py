"""Tracebacks of a program's errors, without the frames of the SDK and of asyncio."""

from __future__ import annotations

import os
import traceback

from inferlet_sdk.tracebacks.hints import advice_on, failing_call

SDK = os.path.dirname(os.path.dirname(__file__))
_MACHINERY = (SDK, os.path.dirname(traceback.__file__) + os.sep + "asyncio")


def format_error(error: BaseException) -> str:
    """Traceback text: the program's own frames, the last frame even if it is not one of them, and what to do."""
    report = traceback.TracebackException.from_exception(error)
    _trim(report)
    lines = list(report.format())
    call = "" if isinstance(error, BaseExceptionGroup) else failing_call(error, is_own)
    if call:
        lines.insert(len(lines) - len(list(report.format_exception_only())), f"  in the call {call}\n")
    advice = advice_on(error)
    return "".join(lines).rstrip("\n") + (f"\n  {advice}" if advice else "")


def is_own(file: str) -> bool:
    """Whether a file is one of the program."""
    return not file.startswith(_MACHINERY)


def _named(frame: traceback.FrameSummary) -> traceback.FrameSummary:
    """A frame of the SDK with the name of its module's file alone: where that lies in the sandbox helps nobody."""
    if not frame.filename.startswith(SDK):
        return frame
    name = os.path.relpath(frame.filename, os.path.dirname(SDK))
    return traceback.FrameSummary(name, frame.lineno, frame.name, lookup_line=False, line=frame.line or "")


def _trim(report: traceback.TracebackException) -> None:
    """Trims an error and those that led to it, which may be more than calls can nest."""
    left: list[traceback.TracebackException | None] = [report]
    while left:
        if (error := left.pop()) is None:
            continue
        own = [n for n, frame in enumerate(error.stack) if is_own(frame.filename)]
        last = [len(error.stack) - 1] if own and own[-1] != len(error.stack) - 1 else []
        error.stack = traceback.StackSummary.from_list([_named(error.stack[n]) for n in own + last])
        left += [error.__cause__, error.__context__, *(getattr(error, "exceptions", None) or ())]
