"""Uses of the Python guest besides inferlets: instances made ahead of a launch, and the compilation of programs.

The guest's own CPython compiles a program to bytecode, inside the sandbox, so no parser of this process reads a hostile
text. Only guests load the bytecode.
"""

from __future__ import annotations

import asyncio
import time

from ...errors import BadProgram
from ...sandbox.fibers import Instance, Step
from ...sandbox.wasi import WasiState
from ..program_host import SourceText

COMPILE_SECONDS = 5.0
"""Limit of processor time for the compilation of one program."""

COMPILER = """
import traceback
from inferlet_sdk.bindings import core
from inferlet_sdk.tracebacks.hints import advice_on
from inferlet_sdk.guest.imports import Refused
from inferlet_sdk.guest.program import compile_source

def main(args):
    try:
        core.set_result(compile_source(*args.argv))
    except Refused as error:
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
        self.wasi = WasiState()
        self.instance: Instance

    def write_output(self, stream: str, data: bytes) -> None:
        """Drops the output of a rehearsal."""


class Compilation(MadeAhead):
    """The owner of an instance that compiles a program; it has what the host functions need that the compiler calls."""

    source: SourceText | None = ("compiler", COMPILER, "")

    def __init__(self, name: str, text: str) -> None:
        super().__init__()
        self.arguments = [name, text]
        self.environment: dict[str, str] = {}
        self.code = ""

    def put_result(self, text: str) -> None:
        self.code = text


async def compile_in_guest(instance: Instance, compilation: Compilation) -> str:
    """Runs the compiler to its end, slice by slice; returns the code. Raises BadProgram with the SyntaxError."""
    used = 0.0
    try:
        while True:
            start = time.perf_counter()
            step = instance.step()
            used += time.perf_counter() - start
            if step is Step.DONE:
                break
            if used > COMPILE_SECONDS or step is Step.WAITING:
                raise BadProgram(f"compiling the program took more than {COMPILE_SECONDS:g} s of processor time")
            await asyncio.sleep(0)
        error = instance.outcome()
        if error is not None:
            raise BadProgram(f"the program cannot be used:\n{error}")
        return compilation.code
    finally:
        instance.close()
