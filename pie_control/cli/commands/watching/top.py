"""`pie top`: what a server does now."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import math
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pie_control.errors import Forbidden

from ...interrupts import run_until_signal
from ...server_options import add_server, client_of
from ...tables import format_table, waiting
from ...terminal import clear_terminal, write, write_line

if TYPE_CHECKING:
    from pie_control.client import Client

NAME = "top"
HELP = "show what a server does now: workers, hosts, and inferlets by their processor time"
EXAMPLES = """  pie top                                    until Ctrl-C
  pie top --seconds 5
  pie top --once                             one picture, as when stdout is no terminal
  pie top --json | jq .models                the same as numbers"""

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
    statistics: Mapping[str, Any]  # of a key that may not `admin`: those of its tenant alone


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.add_argument("--seconds", type=_seconds, default=1.0, help="time between two pictures (default: 1)")
    parser.add_argument("--once", action="store_true", help="show one picture and end")
    parser.add_argument("--json", action="store_true", help="print one picture as JSON: rates a second, sizes in bytes")
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
    once = options.once or options.json or not sys.stdout.isatty()
    async with client_of(options) as client:
        before = await _sample(client)
        while True:
            await asyncio.sleep(max(0.1, options.seconds))
            now = await _sample(client)
            if options.json:
                write_line(json.dumps(measured(before, now), indent=2))
                return 0
            lines = list(picture(before, now))
            if once:
                write_line("\n".join(lines))
                return 0
            _paint(lines)
            before = now


async def _sample(client: Client) -> Sample:
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


def measured(before: Sample, now: Sample) -> dict[str, Any]:
    """What happened between two samples, a second, and what stands at the second, as values for JSON. `busy` is a share
    of a processor, of a worker's `busy` of its time; sizes are in bytes. `models` and `hosts` are empty for who may not
    see them."""
    seconds = max(1e-9, now.seconds - before.seconds)
    running = [each for each in now.inferlets if each["ended"] is None]
    busy = _busy(before.inferlets, running, seconds)
    old, new = before.statistics, now.statistics
    seen = "models" in new
    return {
        "seconds": seconds,
        "outages": list(new["outages"]) if seen else [],
        "models": list(_models(old, new, seconds)) if seen else [],
        "hosts": list(_hosts(old, new, seconds)) if seen else [],
        "keys": list(_keys(running, busy)),
        "inferlets": [
            {**each, "busy": busy[each["id"]]} for each in sorted(running, key=lambda each: -busy[each["id"]])
        ],
    }


def picture(before: Sample, now: Sample) -> Iterator[str]:
    """Lines that tell what `measured` gives."""
    told = measured(before, now)
    inferlets = told["inferlets"]
    yield f"{len(inferlets)} inferlets run"
    if told["models"]:
        yield from told["outages"]
        yield ""
        yield format_table(MODELS, map(_model_row, told["models"]))
        yield ""
        yield format_table(HOSTS, map(_host_row, told["hosts"]))
    if any(each["key"] for each in told["keys"]):
        yield ""
        yield format_table(KEYS, map(_key_row, told["keys"]))
    yield ""
    if any(each["tenant"] != inferlets[0]["tenant"] for each in inferlets):
        rows = (_inferlet_row(each, each["tenant"]) for each in inferlets)
        yield format_table((INFERLETS[0], "TENANT", *INFERLETS[1:]), rows)
    else:
        yield format_table(INFERLETS, map(_inferlet_row, inferlets))


def _models(before: Mapping[str, Any], now: Mapping[str, Any], seconds: float) -> Iterator[dict[str, Any]]:
    for name, workers in now["models"].items():
        for number, worker in enumerate(workers):
            new = worker["scheduler"]
            known = before["models"].get(name, ())
            old = known[number]["scheduler"] if number < len(known) else new
            yield {
                "model": name,
                "worker": number + 1,
                "state": worker["state"],
                "busy": min(1.0, _rate(new, old, "worker_seconds", seconds)),
                "waves": _rate(new, old, "waves", seconds),
                "tokens": _rate(new, old, "input_tokens", seconds),
                "commands_waiting": new["commands_waiting"],
                "pages": new["pages"],
                "export_pages": new["export_pages"],
                "states": new["states"],
            }


def _model_row(one: Mapping[str, Any]) -> Sequence[str]:
    pages, states = one["pages"], one["states"]
    return (
        *(one["model"], one["state"], f"{one['busy']:.0%}", f"{one['waves']:.0f}", f"{one['tokens']:.0f}"),
        str(one["commands_waiting"]),
        f"{pages['used']} of {pages['total']} ({pages['used'] / max(1, pages['total']):.0%})",
        str(one["export_pages"]),
        f"{states['used']} of {states['total']}" if states["total"] else "",
    )


def _hosts(before: Mapping[str, Any], now: Mapping[str, Any], seconds: float) -> Iterator[dict[str, Any]]:
    old = {each["host"]: each for each in before["hosts"]}
    for host in now["hosts"]:
        was = old.get(host["host"], host)
        same = {name: host[name] for name in ("host", "state", "inferlets", "memory_bytes")}
        yield {**same, "busy": _rate(host, was, "guest_seconds", seconds), "turns": _rate(host, was, "turns", seconds)}


def _host_row(one: Mapping[str, Any]) -> Sequence[str]:
    turns, memory = f"{one['turns']:.0f}", f"{one['memory_bytes'] / MIB:.0f} MiB"
    return str(one["host"]), one["state"], f"{one['busy']:.0%}", str(one["inferlets"]), turns, memory


def _rate(new: Mapping[str, Any], old: Mapping[str, Any], what: str, seconds: float) -> float:
    """What was counted a second; a worker or host that was started again counts from 0."""
    return max(0.0, float(new[what]) - float(old[what])) / seconds


def _busy(
    before: Sequence[Mapping[str, Any]], running: Sequence[Mapping[str, Any]], seconds: float
) -> Mapping[str, float]:
    """The share of a processor that each inferlet has used since."""
    old = {each["id"]: each["cpu_seconds"] for each in before}
    return {each["id"]: max(0.0, each["cpu_seconds"] - old.get(each["id"], 0.0)) / seconds for each in running}


def _keys(running: Sequence[Mapping[str, Any]], busy: Mapping[str, float]) -> Iterator[dict[str, Any]]:
    """What the inferlets of each key hold, those of most pages first."""
    keys: dict[str, list[Mapping[str, Any]]] = {}
    for each in running:
        keys.setdefault(each["key"], []).append(each)
    for key, some in sorted(keys.items(), key=lambda one: -sum(each["pages"] for each in one[1])):
        held = {what: sum(each[what] for each in some) for what in ("pages", "embeds")}
        yield {"key": key, "inferlets": len(some), "busy": sum(busy[each["id"]] for each in some), **held}


def _key_row(one: Mapping[str, Any]) -> Sequence[str]:
    counts = str(one["inferlets"]), f"{one['busy']:.0%}", str(one["pages"]), str(one["embeds"])
    return one["key"] or "(none)", *counts


def _inferlet_row(one: Mapping[str, Any], *tenant: str) -> Sequence[str]:
    age = f"{time.time() - one['created']:.0f} s"
    held = str(one["pages"]), str(one["host"])
    return one["id"], *tenant, one["program_name"], age, f"{one['busy']:.0%}", *held, waiting(one)
