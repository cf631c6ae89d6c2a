"""`python -m benchmarks NAME [options]`: runs one benchmark, prints its rows, writes them with machine and commit."""

from __future__ import annotations

import argparse
import asyncio
import functools
import os
import signal
import sys
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

from pie_control.inference_client.process import worker_environment

from . import catalog, plans, report
from .catalog import Benchmark, Entry

MOST_LOAD = 0.5
"""Most runnable processes of others; above it, times measure them too."""
INTERRUPTED = 130
"""The exit status."""
LINES = functools.partial(argparse.HelpFormatter, max_help_position=20, width=120)
"""One description for each benchmark."""
TEXT = functools.partial(argparse.RawDescriptionHelpFormatter, width=120)


def main(words: Sequence[str]) -> int:
    """Runs a benchmark. Returns the exit status: 1 if the benchmark is one that can fail, and did, 2 if it
    cannot go on, such as with a server that is none of completions, 130 if it was interrupted. Its servers and folders
    go even so."""
    benchmark, options = parse(words)
    machine, commit = report.machine(), report.commit()
    if machine.load > MOST_LOAD:
        print(f"the machine is not idle (load {machine.load}): times will be too long", file=sys.stderr)
    try:
        rows = asyncio.run(_until_signal(benchmark.run(options.plan)))
    except (KeyboardInterrupt, asyncio.CancelledError):
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:
        if (sentence := _sentence(error)) is None:
            raise
        print(f"error: {sentence}", file=sys.stderr)
        return 2
    made = report.make_report(options.name, options.form, options.plan, machine, commit, rows)
    print(benchmark.summary(rows) if hasattr(benchmark, "summary") else report.as_table(made.rows))
    if options.json is not None:
        made.write(options.json)
    return 0 if not hasattr(benchmark, "passed") or benchmark.passed(rows) else 1


async def _until_signal(work: Coroutine[Any, Any, Sequence[Any]]) -> Sequence[Any]:
    """The rows. Ctrl-C and SIGTERM end the benchmark's own task alone, whose `finally` clauses need the others; a
    second one ends the process at once. Raises KeyboardInterrupt or CancelledError for it."""
    loop, own, received = asyncio.get_running_loop(), asyncio.current_task(), list[int]()
    assert own is not None

    def interrupt(number: int, _: object) -> None:
        if received:
            os._exit(INTERRUPTED)
        received.append(number)
        if asyncio.current_task() is own:
            raise KeyboardInterrupt  # it computes, and may not wait for anything soon
        loop.call_soon_threadsafe(own.cancel)

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        return await work
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _sentence(error: BaseException) -> str | None:
    """What there is to say of an error for which a benchmark cannot help it; None: how it came about has to be seen."""
    if isinstance(error, BaseExceptionGroup):
        found = [_sentence(one) for one in error.exceptions]
        return None if None in found else found[0]
    client: Any = sys.modules.get("pie_control.client")  # needs packages that not all benchmarks need
    helpless = (report.BenchmarkError, *((client.ServerUnavailable,) if client else ()))
    return str(error) if isinstance(error, helpless) else None


def parse(words: Sequence[str]) -> tuple[Benchmark, argparse.Namespace]:
    """The benchmark to run, and `name`, `form`, `plan` and `json`. Exits with 2 if the command line makes no sense.

    Only the benchmark that is named is imported, so only its options are known.
    """
    entries = catalog.find()
    parser = argparse.ArgumentParser(
        "python -m benchmarks", description="Measures Pie; docs/benchmarks.md has more.", formatter_class=LINES
    )
    names = parser.add_subparsers(dest="name", metavar="NAME", required=True, help="its options: NAME --help")
    parsers = {name: _add_parser(names, entry) for name, entry in entries.items()}
    if not words or words[0] not in entries:
        parser.parse_args(words)  # --help, or an error
        parser.error("the name comes first")
    benchmark, own = entries[words[0]].load(), parsers[words[0]]
    given: Any = benchmark if hasattr(benchmark, "add_options") else plans
    given.add_options(own, benchmark)
    options, unknown = parser.parse_known_args(words)
    if unknown:
        own.error(f"unrecognized arguments: {' '.join(unknown)}")
    try:
        options.plan = given.chosen(benchmark, options)
    except ValueError as error:
        own.error(str(error))
    return benchmark, options


def _add_parser(names: Any, entry: Entry) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = names.add_parser(
        entry.name,
        help=entry.question,
        description=entry.description,
        allow_abbrev=False,
        formatter_class=TEXT,
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="where the rows go, with machine and commit")
    return parser


def start(words: Sequence[str]) -> int:
    """Starts this process again in a worker's environment, for the closed loop: malloc reads it only when a process
    starts."""
    environment = worker_environment(os.environ)
    if environment != os.environ:
        os.execve(sys.executable, [sys.executable, "-m", "benchmarks", *words], environment)
    return main(words)


if __name__ == "__main__":
    sys.exit(start(sys.argv[1:]))
