"""A corpus of hostile and clumsy programs: each ends with its expected, clear outcome, frees everything, and a
well-behaved inferlet beside it goes on. `tests/hostile/NAME.py` begins with the status and a pattern of the error."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from pie_control.errors import BadProgram
from pie_control.inferlets.events import Ended
from pie_control.server_api import ServerApi
from pie_control.testing.fake_model import FakeModel
from pie_control.testing.in_process import InProcessClient
from tests.helpers.guard import HANG_SECONDS
from tests.helpers.servers import inferlets_of, launch, started, until_nothing_is_held
from tests.helpers.tiers import corpus
from tests.helpers.tree import HOSTILE

HEADER = re.compile(r"# status: (?P<status>\S+)\n(# error: (?P<error>.*)\n)?")
PROGRAMS = sorted(HOSTILE.glob("*.py"))
ENDLESS = [path for path in PROGRAMS if (found := HEADER.match(path.read_text())) and "exceeded" in found["status"]]
"""Only for these is processor time short: how much the others take says how busy the machine is."""

BEATS_AT_ONCE = 50
TURNS_UNTIL_A_BEAT = 12
"""Between two of the neighbour's messages, of all inferlets; two to four are seen. How long a turn takes is the
machine's, which may stand still in the middle of one; whose turn it is is ours."""
NEIGHBOUR = f"""
import asyncio, itertools
from inferlet_sdk import Context

async def main(args):
    for beat in itertools.count():
        if beat % 50 == 0:
            context = Context(args.model)
            context.fill("the quick brown fox ")
        async for _ in context.generate(max_tokens=1):
            pass
        await args.send(str(beat))
        if beat > {BEATS_AT_ONCE}:
            await asyncio.sleep(0.05)  # within SHORT_TIME, too
        if beat % 50 == 49:
            context.close()
"""


LIMITS: dict[str, object] = {
    "memory_bytes": 96 << 20,
    "max_pages": 2000,
    "max_embeds": 3000,
    "max_futures": 2000,
    "max_pending_bytes": 4 << 20,
    "http_allow": "*",
}
SHORT_TIME = {"cpu_seconds": 1.0, "cpu_refill": 0.0}
"""Nothing comes back while a program waits: on a busy machine, one that is always about to run seems to do that."""


async def outcome_of(server: ServerApi, program: Path) -> Ended:
    """How a program ends; `refused` if it cannot even be uploaded."""
    try:
        await server.upload(program.read_bytes(), program.name)
    except BadProgram as error:
        return Ended("refused", None, str(error), inferlet="")
    inferlet = await server.launch(program.name)
    while (status := inferlet.info().status) in ("created", "running"):
        await asyncio.sleep(0.005)
    return Ended(status, inferlet.info().result, inferlet.info().error, inferlet=inferlet.id)


async def run_beside_a_neighbour(server: ServerApi, program: Path) -> tuple[Ended, int, int]:
    """How it ends, the neighbour's messages and the turns of all until then."""
    beside, neighbour = await launch(server, NEIGHBOUR)
    try:
        await neighbour.until_messages(1)
        runner = inferlets_of(server, beside.host).runner
        messages, turns = len(neighbour.messages), runner.turns
        ended = await outcome_of(server, program)
        messages, turns = len(neighbour.messages) - messages, runner.turns - turns
        await neighbour.until_messages(len(neighbour.messages) + 1)  # it goes on
    finally:
        server.terminate(beside.id, "the test is over")
    return ended, messages, turns


async def check(server: ServerApi, program: Path) -> None:
    header = HEADER.match(program.read_text())
    assert header, f"{program.name} does not begin with its expected status"
    ended, beats, turns = await run_beside_a_neighbour(server, program)
    assert re.fullmatch(header["status"], ended.status), ended
    assert re.search(header["error"] or "", ended.error or ""), ended.error
    if ended.status == "exceeded" and beats < BEATS_AT_ONCE:
        assert turns <= TURNS_UNTIL_A_BEAT * (beats + 1), f"the neighbour sent {beats} messages in {turns} turns"
    await until_nothing_is_held(server)


@pytest.fixture(scope="module")
def run(guest_cache: Path) -> Iterator[Callable[[Path], None]]:
    """Checks a program, on a server that all with the same limits share: what one leaves behind, the next ones meet."""
    servers: dict[bool, ServerApi] = {}
    stack = AsyncExitStack()

    async def check_on_its_server(program: Path) -> None:
        endless = program in ENDLESS
        if endless not in servers:
            client = InProcessClient(FakeModel(num_pages=4096))
            limits = LIMITS | (SHORT_TIME if endless else {})
            servers[endless] = await stack.enter_async_context(started(guest_cache, client, **limits))
        async with asyncio.timeout(HANG_SECONDS):
            await check(servers[endless], program)

    with asyncio.Runner() as runner:
        yield lambda program: runner.run(check_on_its_server(program))
        runner.run(stack.aclose())


def kind(program: Path) -> str:
    """How a program ends or, if it would not end by itself, what it does by the first word of its name. The other ones
    run all together in `test_host_loss`, in `make test` too."""
    header = HEADER.match(program.read_text())
    if program not in ENDLESS:
        return header["status"] if header else ""
    word = "flood" if "_begun_" in program.stem else program.stem.partition("_")[0]
    return "endless" if word == "swallows" else word


@pytest.mark.parametrize("program", corpus(PROGRAMS, kind), ids=lambda path: path.stem)
def test_ends_clearly_and_disturbs_nobody(program: Path, run: Callable[[Path], None]) -> None:
    run(program)
