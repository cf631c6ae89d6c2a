"""Does a saturated server keep its promises while clients vanish, and its hosts and workers are killed?

Three tenants of equal weight run examples over and over, `at_once` each: all techniques, and whatever else needs no
files, with an agent's world and both demo models. One run in `vanishing` loses its client, whose connection breaks in
the middle. Every `kill_seconds` a host or the worker is killed, in turns. The row passes if no run ended with an error
that this does not explain, all pages of the worker came back, no tenant finished less than half of its share, and the
memory of the server's processes grew by no more than `MOST_GROWTH` between the second and the last quarter of the time.
A run that was lost, or failed because a child of it was, is explained if it began before what was killed served again;
so is a launch that was refused as nothing serves, after which a client pauses, as it would.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import re
import secrets
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any

import psutil

from examples.world.serving import Settings
from examples.world.serving import serving as world
from pie_control.client import Client, InferletEnded, ServerUnavailable
from pie_control.config import SHIPPED
from pie_control.errors import Conflict, HostUnavailable, PieError, WorkerUnavailable

from ..plans import MAY_BE_ZERO
from ..report import BenchmarkError
from ..support.guests import examples
from ..support.processes import of_part
from ..support.server import Server, serving

TENANTS = ("one", "two", "three")
MOST_GROWTH = 1.15
"""Of memory; told only of runs that take `TELLING_MINUTES` or more, as caches fill in the first ones."""
TELLING_MINUTES = 5.0
LEAST_OF_SHARE = 0.5
MOST_SECONDS = 240.0
"""For one run, and for the server to come to rest at the end."""
PAUSE_SECONDS = 1.0
"""Of a client that is told to try again later."""
SHOWN = 5
"""Unexplained errors that the summary prints."""
BROKEN = (PieError, psutil.Error, TimeoutError)
"""Errors of the watch that are no mistake of its own."""
Programs = dict[Path, dict[str, Any]]
LOST_CHILD = re.compile(r"ChildFailed: the child i\d+ lost: ")
"""In the traceback of a run that waited for a child."""


@dataclass(frozen=True)
class Plan:
    """`minutes` of load; `kill_seconds` between two kills, 0: none; `vanishing`: one run in so many, 0: none. What is
    killed more often than once in 60 s (`engine/restarts.py`) is started again after pauses that double."""

    minutes: float = 10.0
    at_once: int = 8
    kill_seconds: float = 35.0
    vanishing: int = field(default=5, metadata=MAY_BE_ZERO)
    seed: int = 0

    def __post_init__(self) -> None:
        if self.minutes <= 0 or self.at_once < 1 or self.kill_seconds < 0 or self.vanishing < 0:
            raise ValueError("give more than 0 minutes, 1 run or more at once, and nothing below 0")


FULL = Plan()
QUICK = Plan(minutes=0.5, kill_seconds=6.0)


@dataclass(frozen=True)
class Row:
    """`lost` runs, and `refused` launches, are those that a kill explains. `least_share`: of the tenant that finished
    least, 1 being equal."""

    minutes: float
    programs: int
    finished: int
    vanished: int
    kills: int
    lost: int
    refused: int
    unexplained: int
    pages_left: int  # that nothing holds, and that are not free
    least_share: float
    memory_growth: float  # 1: none
    errors: tuple[str, ...]

    @property
    def passed(self) -> bool:
        grew = self.minutes >= TELLING_MINUTES and self.memory_growth > MOST_GROWTH
        return not (self.unexplained or self.pages_left or grew) and self.least_share >= LEAST_OF_SHARE


async def run(plan: Plan) -> list[Row]:
    """One row."""
    tokens = {name: secrets.token_urlsafe(32) for name in TENANTS}
    with _tenants(tokens) as file:
        async with (
            world(Settings(slow=0, failures=0)) as tools,
            serving(tenants=file, hosts=2, model=list(SHIPPED), http_allow=tools.place) as server,
        ):
            try:
                return [await _Soak(plan, server, tokens, tools.url).row()]
            except (ExceptionGroup, *BROKEN) as error:
                raise _broken(error) from error


def _broken(error: Exception) -> Exception:
    """What to raise for an error of the watch: a sentence, where the server no longer answers or is gone."""
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    told = error.exceptions if isinstance(error, ExceptionGroup) else (error,)
    if not all(isinstance(one, BROKEN) for one in told):
        return error
    reasons = "; ".join(dict.fromkeys(str(one) or type(one).__name__ for one in told))
    return BenchmarkError(f"the server can no longer be watched: {reasons}: run it again")


def passed(rows: Sequence[Row]) -> bool:
    return all(row.passed for row in rows)


@dataclass
class _Soak:
    plan: Plan
    server: Server
    tokens: dict[str, str]
    world: str
    finished: Counter[str] = field(default_factory=Counter)
    vanished: int = 0
    kills: int = 0
    lost: int = 0
    refused: int = 0
    unexplained: list[str] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)
    disturbed_until: float = 0.0

    async def row(self) -> Row:
        programs = examples("blobs")
        end = time.monotonic() + 60 * self.plan.minutes
        async with asyncio.timeout(60 * self.plan.minutes + 4 * MOST_SECONDS), asyncio.TaskGroup() as group:
            group.create_task(self._kill(end))
            group.create_task(self._watch_memory(end))
            for name, token in self.tokens.items():
                for number in range(self.plan.at_once):
                    order = random.Random(f"{self.plan.seed} {number}")  # the same for each tenant
                    group.create_task(self._load(name, token, order, programs, end))
        share = min(self.finished[name] for name in TENANTS) / (max(self.finished.total(), 1) / len(TENANTS))
        return Row(
            self.plan.minutes,
            len(programs),
            self.finished.total(),
            self.vanished,
            self.kills,
            self.lost,
            self.refused,
            len(self.unexplained),
            await self._pages_left(),
            round(share, 3),
            round(self._growth(), 3),
            tuple(self.unexplained[:SHOWN]),
        )

    async def _load(self, tenant: str, token: str, order: random.Random, programs: Programs, end: float) -> None:
        """One program after the other, until the end."""
        while time.monotonic() < end:
            folder = order.choice(list(programs))
            vanishes = bool(self.plan.vanishing) and order.randrange(self.plan.vanishing) == 0
            begun = time.monotonic()
            try:
                async with Client(self.server.url, token) as client:
                    await self._run(client, folder, programs[folder], vanishes)
            except (WorkerUnavailable, HostUnavailable) as error:
                self.refused += self._explains(folder.name, error, begun)
                await asyncio.sleep(PAUSE_SECONDS)
            except (InferletEnded, ServerUnavailable, TimeoutError) as error:
                if getattr(error, "status", "") == "lost" or LOST_CHILD.search(str(error)):
                    self.lost += self._explains(folder.name, error, begun)
                else:
                    self._unexplained(folder.name, error)
            else:
                self.finished[tenant] += not vanishes
                self.vanished += vanishes

    async def _run(self, client: Client, folder: Path, options: dict[str, Any], vanishes: bool) -> None:
        arguments = [*options.get("arguments", ()), *([f"world={self.world}"] if "tools" in options else [])]
        environment = {"model": options.get("model", "demo")}
        async with asyncio.timeout(MOST_SECONDS):
            running = await client.launch(folder / f"{folder.name}.py", *arguments, environment=environment)
            for message in options.get("messages", ()):
                with contextlib.suppress(Conflict):  # it has ended, and its result says why
                    await running.send(message)
            async for _ in running:
                if vanishes:
                    _break(client)
                    return
            await running.result()

    def _explains(self, program: str, error: Exception, begun: float) -> bool:
        """Whether a kill explains that what began then was lost or refused."""
        explained = begun < self.disturbed_until
        if not explained:
            self._unexplained(program, error)
        return explained

    def _unexplained(self, program: str, error: Exception) -> None:
        status = getattr(error, "status", "")
        self.unexplained.append(f"{program}: {type(error).__name__} {status}: {error}"[:400])

    async def _kill(self, end: float) -> None:
        """Kills a host or the worker, in turns. What was launched before they serve again may be lost."""
        if not self.plan.kill_seconds:
            return
        order = random.Random(self.plan.seed)
        async with Client(self.server.url, self.tokens[TENANTS[0]]) as client:
            while time.monotonic() + 2 * self.plan.kill_seconds < end:
                await asyncio.sleep(self.plan.kill_seconds)
                part = "worker" if self.kills % 2 else "hosts"
                if not (alive := of_part(self.server.pid, part)):
                    continue
                self.disturbed_until = end + MOST_SECONDS
                os.kill(order.choice(alive), signal.SIGKILL)
                self.kills += 1
                while _restarts(found := await client.statistics()) < self.kills or found["outages"]:
                    await asyncio.sleep(0.1)
                self.disturbed_until = time.monotonic()

    async def _watch_memory(self, end: float) -> None:
        """Samples what all processes of the server hold, in bytes of their own."""
        server = psutil.Process(self.server.pid)
        while time.monotonic() < end:
            total = 0
            for process in (server, *server.children(recursive=True)):
                with contextlib.suppress(psutil.NoSuchProcess):
                    total += process.memory_full_info().uss
            self.memory.append(total)
            await asyncio.sleep(1.0)

    def _growth(self) -> float:
        quarter = len(self.memory) // 4
        if not quarter:
            return 1.0
        return mean(self.memory[-quarter:]) / mean(self.memory[quarter : 2 * quarter])

    async def _pages_left(self) -> int:
        """Pages that did not come back although no inferlet is left. Waits until none is."""
        async with Client(self.server.url, self.tokens[TENANTS[0]]) as client:
            deadline = time.monotonic() + MOST_SECONDS
            while True:
                found = await client.statistics()
                schedulers = [one["scheduler"] for model in found["models"].values() for one in model]
                left = sum(each["pages"]["used"] - each["export_pages"] for each in schedulers)
                quarantined = sum(each["pages"]["quarantined"] for each in schedulers)
                at_rest = not (found["inferlets"]["running"] or left or quarantined)
                if at_rest or time.monotonic() > deadline:
                    return int(left + quarantined)
                await asyncio.sleep(0.2)


def _restarts(statistics: dict[str, Any]) -> int:
    """Of all hosts and workers."""
    replicas = [one for model in statistics["models"].values() for one in model]
    return sum(one["restarts"] for one in (*statistics["hosts"], *replicas))


@contextlib.contextmanager
def _tenants(tokens: dict[str, str]) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="pie-soak-") as folder:
        file = Path(folder) / "tenants.toml"
        file.touch(mode=0o600)
        file.write_text("".join(f'[tenants.{name}]\ntokens = ["{token}"]\n' for name, token in tokens.items()))
        yield file


def _break(client: Client) -> None:
    """Ends the client's connection as a client that dies does: without a word."""
    session = vars(client)["_connection"]
    vars(session)["_socket"].transport.abort()
