"""Tracebacks of a program's errors, without the frames of the SDK and of asyncio."""

from __future__ import annotations

import os
import traceback

_HERE = os.path.dirname(__file__)
_MACHINERY = (_HERE, os.path.dirname(traceback.__file__) + os.sep + "asyncio")


def format_error(error: BaseException) -> str:
    """Traceback text: the program's own frames, and the last frame even if it is not one of them."""
    report = traceback.TracebackException.from_exception(error)
    _trim(report)
    return "".join(report.format()).rstrip("\n")


def _named(frame: traceback.FrameSummary) -> traceback.FrameSummary:
    """A frame of the SDK with the name of its module's file alone: where that lies in the sandbox helps nobody."""
    if not frame.filename.startswith(_HERE):
        return frame
    name = os.path.relpath(frame.filename, os.path.dirname(_HERE))
    return traceback.FrameSummary(name, frame.lineno, frame.name, lookup_line=False, line=frame.line or "")


def _trim(report: traceback.TracebackException | None) -> None:
    if report is None:
        return
    own = [n for n, frame in enumerate(report.stack) if not frame.filename.startswith(_MACHINERY)]
    last = [len(report.stack) - 1] if own and own[-1] != len(report.stack) - 1 else []
    report.stack = traceback.StackSummary.from_list([_named(report.stack[n]) for n in own + last])
    for cause in (report.__cause__, report.__context__, *(getattr(report, "exceptions", None) or ())):
        _trim(cause)
