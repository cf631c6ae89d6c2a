"""`pie top`: what a server does now."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import math
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pie_control.errors import Forbidden

from ...interrupts import run_until_signal
from ...server_options import DEFAULT_SERVER, add_server, server_of, token_of
from ...tables import format_table, waiting
from ...terminal import clear_terminal, write, write_line

if TYPE_CHECKING:
    from pie_control.client import Client

NAME = "top"
HELP = "show what a server does now: workers, hosts, and inferlets by their processor time"
EXAMPLES = """  pie top                                    until Ctrl-C
  pie top --seconds 5
  pie top --once                             one picture, as when stdout is no terminal"""

INFERLETS = ("ID", "PROGRAM", "AGE", "CPU", "PAGES", "HOST", "WAITS FOR")
MODELS = ("MODEL", "WORKER", "BUSY", "WAVES/s", "TOKENS/s", "WAITING", "PAGES", "KEPT", "STATES")
KEYS = ("KEY", "INFERLETS", "CPU", "PAGES", "EMBEDS")
HOSTS = ("HOST", "STATE", "CPU", "INFERLETS", "TURNS/s", "MEMORY")
LEAST_SECONDS = 0.1
MIB = 1 << 20


@dataclass(frozen=True)
class Sample:
    """What a server said at one time."""

    seconds: float
    inferlets: Sequence[Mapping[str, Any]]
    statistics: Mapping[str, Any] | None  # of a key that may not `admin`: None, or those of its tenant alone


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.add_argument("--seconds", type=_seconds, default=1.0, help="time between two pictures (default: 1)")
    parser.add_argument("--once", action="store_true", help="show one picture and end")
    add_server(parser)


def _seconds(text: str) -> float:
    with contextlib.suppress(ValueError):
        if LEAST_SECONDS <= (seconds := float(text)) < math.inf:
            return seconds
    raise argparse.ArgumentTypeError(f"a number of at least {LEAST_SECONDS}, not {text!r}")


def execute(options: argparse.Namespace) -> int:
    """Shows pictures until a signal ends it."""
    return run_until_signal(_watch(options))


async def _watch(options: argparse.Namespace) -> int:
    from pie_control.client import Client

    once = options.once or not sys.stdout.isatty()
    async with Client(server_of(options) or DEFAULT_SERVER, token_of(options)) as client:
        before = await _sample(client)
        while True:
            await asyncio.sleep(max(0.1, options.seconds))
            now = await _sample(client)
            lines = list(picture(before, now))
            if once:
                write_line("\n".join(lines))
                return 0
            _paint(lines)
            before = now


async def _sample(client: Client) -> Sample:
    statistics = None
    with contextlib.suppress(Forbidden):
        statistics = await client.statistics()
    return Sample(time.monotonic(), await _seen(client), statistics)


async def _seen(client: Client) -> list[dict[str, Any]]:
    """The inferlets of all tenants, or of the own one where it may not see more."""
    try:
        return await client.inferlets(of_all=True)
    except Forbidden:
        return await client.inferlets()


def _paint(lines: Sequence[str]) -> None:
    """Fills the terminal with as much as it has room for."""
    size = shutil.get_terminal_size()
    shown = [line[: size.columns] for line in lines[: size.lines - 1]]
    clear_terminal()
    write("\n".join(shown))


def picture(before: Sample, now: Sample) -> Iterator[str]:
    """Lines that tell what happened between two samples, and what stands at the second."""
    seconds = max(1e-9, now.seconds - before.seconds)
    running = [each for each in now.inferlets if each["ended"] is None]
    yield f"{len(running)} inferlets run"
    if now.statistics and before.statistics and "models" in now.statistics:
        yield from now.statistics["outages"]
        yield ""
        yield format_table(MODELS, _models(before.statistics, now.statistics, seconds))
        yield ""
        yield format_table(HOSTS, _hosts(before.statistics, now.statistics, seconds))
    busy = _busy(before.inferlets, running, seconds)
    if any(each["key"] for each in running):
        yield ""
        yield format_table(KEYS, _keys(running, busy))
    yield ""
    if any(each["tenant"] != running[0]["tenant"] for each in running):
        rows = _inferlets(running, busy, lambda each: (each["tenant"],))
        yield format_table((INFERLETS[0], "TENANT", *INFERLETS[1:]), rows)
    else:
        yield format_table(INFERLETS, _inferlets(running, busy))


def _models(before: Mapping[str, Any], now: Mapping[str, Any], seconds: float) -> Iterator[Sequence[str]]:
    for name, workers in now["models"].items():
        for number, worker in enumerate(workers):
            new = worker["scheduler"]
            pages, states = new["pages"], new["states"]
            known = before["models"].get(name, ())
            old = known[number]["scheduler"] if number < len(known) else new
            yield (
                name,
                worker["state"],
                f"{min(1.0, _rate(new, old, 'worker_seconds', seconds)):.0%}",
                f"{_rate(new, old, 'waves', seconds):.0f}",
                f"{_rate(new, old, 'input_tokens', seconds):.0f}",
                str(new["commands_waiting"]),
                f"{pages['used']} of {pages['total']} ({pages['used'] / max(1, pages['total']):.0%})",
                str(new["export_pages"]),
                f"{states['used']} of {states['total']}" if states["total"] else "",
            )


def _hosts(before: Mapping[str, Any], now: Mapping[str, Any], seconds: float) -> Iterator[Sequence[str]]:
    old = {each["host"]: each for each in before["hosts"]}
    for host in now["hosts"]:
        was = old.get(host["host"], host)
        yield (
            str(host["host"]),
            host["state"],
            f"{_rate(host, was, 'guest_seconds', seconds):.0%}",
            str(host["inferlets"]),
            f"{_rate(host, was, 'turns', seconds):.0f}",
            f"{host['memory_bytes'] / MIB:.0f} MiB",
        )


def _rate(new: Mapping[str, Any], old: Mapping[str, Any], what: str, seconds: float) -> float:
    """What was counted a second; a worker or host that was started again counts from 0."""
    return max(0.0, float(new[what]) - float(old[what])) / seconds


def _busy(
    before: Sequence[Mapping[str, Any]], running: Sequence[Mapping[str, Any]], seconds: float
) -> Mapping[str, float]:
    """The share of a processor that each inferlet has used since."""
    old = {each["id"]: each["cpu_seconds"] for each in before}
    return {each["id"]: max(0.0, each["cpu_seconds"] - old.get(each["id"], 0.0)) / seconds for each in running}


def _keys(running: Sequence[Mapping[str, Any]], busy: Mapping[str, float]) -> Iterator[Sequence[str]]:
    """What the inferlets of each key hold, those of most pages first."""
    keys: dict[str, list[Mapping[str, Any]]] = {}
    for each in running:
        keys.setdefault(each["key"], []).append(each)
    for key, some in sorted(keys.items(), key=lambda one: -sum(each["pages"] for each in one[1])):
        cpu = sum(busy[each["id"]] for each in some)
        pages, embeds = (sum(each[what] for each in some) for what in ("pages", "embeds"))
        yield key or "(none)", str(len(some)), f"{cpu:.0%}", str(pages), str(embeds)


def _inferlets(
    running: Sequence[Mapping[str, Any]],
    busy: Mapping[str, float],
    whose: Callable[[Mapping[str, Any]], Sequence[str]] = lambda _: (),
) -> Iterator[Sequence[str]]:
    """Those that run, the busiest first."""
    for each in sorted(running, key=lambda each: -busy[each["id"]]):
        yield (
            each["id"],
            *whose(each),
            each["program_name"],
            f"{time.time() - each['created']:.0f} s",
            f"{busy[each['id']]:.0%}",
            str(each["pages"]),
            str(each["host"]),
            waiting(each),
        )
