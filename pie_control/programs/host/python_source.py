"""Uses of the Python guest besides inferlets: instances made ahead of a launch, and the compilation of programs.

The guest's own CPython compiles a program to bytecode, inside the sandbox, so no parser of this process reads a hostile
text. Only guests load the bytecode.
"""

from __future__ import annotations

import asyncio
import time

from ...errors import BadProgram, QuotaExceeded
from ...sandbox.fibers import Instance, Step
from ...sandbox.wasi import WasiState
from ..program_host import SourceText

COMPILE_SECONDS = 5.0
"""Limit of processor time for the compilation of a small program."""
COMPILE_SECONDS_PER_MIB = 12.0
"""What each MiB of it adds: of a text, or of an archive in base64. Wheels shrink to a quarter in one."""
MOST_COMPILE_SECONDS = 120.0
MOST_CODE = 96 << 20
"""Characters of the code of one program: base64 of twice what a package may have, for sources and their code."""

COMPILER = """
import traceback
from inferlet_sdk.tracebacks.hints import advice_on
from inferlet_sdk.guest.packages.compiled import compile_for_host
from inferlet_sdk.guest.packages.imports import ImportRefused

def main(args):
    try:
        compile_for_host(*args.argv)
    except ImportRefused as error:
        raise SystemExit(str(error)) from None
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        advice = advice_on(error)
        told = "".join(traceback.format_exception_only(error)).rstrip()
        raise SystemExit(told + (f"\\n  {advice}" if advice else "")) from None
"""


class MadeAhead:
    """The owner of an instance that waits for a program."""

    source: SourceText | None = None

    def __init__(self) -> None:
        self.has_source = False
        self.wasi = WasiState()
        self.instance: Instance

    def write_output(self, stream: str, data: bytes) -> None:
        """Drops the output of a rehearsal."""


class Compilation(MadeAhead):
    """The owner of an instance that compiles a program; it has what the host functions need that the compiler calls."""

    source: SourceText | None = ("compiler", COMPILER, "")

    def __init__(self, name: str, text: str) -> None:
        super().__init__()
        self.text = text
        self.arguments = [name]
        self.environment: dict[str, str] = {}
        self._pieces: list[str] = []
        self._size = 0

    @property
    def seconds(self) -> float:
        """Limit of processor time."""
        return min(COMPILE_SECONDS + COMPILE_SECONDS_PER_MIB * len(self.text) / (1 << 20), MOST_COMPILE_SECONDS)

    @property
    def code(self) -> str:
        return "".join(self._pieces)

    def put_code(self, piece: str) -> None:
        """Raises QuotaExceeded."""
        self._size += len(piece)
        if self._size > MOST_CODE:
            raise QuotaExceeded(f"the code of the program has more than {MOST_CODE >> 20} MiB: leave modules out")
        self._pieces.append(piece)

    put_result = put_code


async def compile_in_guest(instance: Instance, compilation: Compilation) -> str:
    """Runs the compiler to its end, slice by slice; returns the code. Raises BadProgram with the SyntaxError."""
    used = 0.0
    try:
        while True:
            start = time.thread_time()
            step = instance.step()
            used += time.thread_time() - start
            if step is Step.DONE:
                break
            if used > compilation.seconds or step is Step.WAITING:
                raise BadProgram(
                    f"compiling the program took more than {compilation.seconds:.0f} s of processor time, the limit "
                    "for its size: leave out modules that it does not need"
                )
            await asyncio.sleep(0)
        error = instance.outcome()
        if error is not None:
            raise BadProgram(f"the program cannot be used:\n{error}")
        return compilation.code
    finally:
        instance.close()
