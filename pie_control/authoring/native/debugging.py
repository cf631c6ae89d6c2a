"""A debugger at the line where a program has failed."""

from __future__ import annotations

import sys
import types

from inferlet_sdk.tracebacks import report


def stop_at(error: BaseException) -> None:
    """Opens pdb at the program's own line from which an error came; `up` and `down` go through its frames."""
    import pdb

    trace = own_part(error.__traceback__)
    if trace is not None:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        pdb.post_mortem(trace)


def own_part(trace: types.TracebackType | None) -> types.TracebackType | None:
    """The frames of a traceback that are the program's: those of the SDK, of asyncio and of the server say nothing."""
    frames = []
    while trace is not None:
        if _is_own(trace.tb_frame.f_code.co_filename):
            frames.append(trace)
        trace = trace.tb_next
    part = None
    for one in reversed(frames):
        part = types.TracebackType(part, one.tb_frame, one.tb_lasti, one.tb_lineno)
    return part


def _is_own(file: str) -> bool:
    return report.is_own(file) and not file.startswith(report.SDK.removesuffix("inferlet_sdk") + "pie_control")
