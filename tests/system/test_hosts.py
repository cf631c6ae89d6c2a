"""Application hosts, in processes of their own and in the server's: inferlets do not notice, until one dies."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path

import pytest
import wasmtime

from pie_control.errors import BadProgram
from pie_control.testing.fake_model import FakeModel
from pie_control.testing.in_process import InProcessClient
from tests.helpers import wat
from tests.helpers.guard import HANG_SECONDS
from tests.helpers.processes import runs
from tests.helpers.servers import host_pids, launch, run, started, until_nothing_is_held
from tests.helpers.tiers import corpus

GENERATE = """
from inferlet_sdk import Context, IgnoreStopTokens

async def main(args, tokens=100_000, ask=False):
    context, made = Context(args.model), 0
    while made < tokens:
        context.fill("Once upon a time ")
        async for piece in context.generate(min(50, tokens - made), stop=IgnoreStopTokens()):
            await args.send(piece)
        made += 50
        context.truncate(10)
    print("told")
    return await args.receive() if ask else "over"
"""
WAIT = """
async def main(args):
    await args.send("ready")
    return await args.receive()
"""
FLOOD = """
async def main(args):
    for number in range(40):
        await args.send("x" * 100_000)
    return "sent"
"""


@pytest.mark.parametrize("hosts", corpus([2, 0], lambda _: "any"))
def test_inferlets_do_the_same_wherever_they_run(guest_cache: Path, hosts: int) -> None:
    async def check() -> None:
        client = InProcessClient(FakeModel())
        async with started(guest_cache, client, hosts=hosts) as server, asyncio.timeout(HANG_SECONDS):
            (first, one), (second, two) = [
                await launch(server, GENERATE, {"tokens": 12, "ask": True}) for _ in range(2)
            ]
            for entry, listener in ((first, one), (second, two)):
                while not listener.lines:
                    await asyncio.sleep(0.01)
                entry.send("the same")
            ended = [await listener.ended for listener in (one, two)]
            assert [json.loads(each.result or "") for each in ended] == ["the same"] * 2
            assert "".join(one.messages) == "".join(two.messages) != ""
            assert one.lines == two.lines == ["told"]
            assert {first.host, second.host} == ({1, 2} if hosts else {0})
            with pytest.raises(BadProgram, match="SyntaxError"):
                await server.upload(b"def main(:", "wrong")
            await server.upload(bytes(wasmtime.wat2wasm(wat.inferlet(*wat.ECHO))), "echo")
            echo = await server.launch("echo")
            echo.send("native")
            while echo.ended is None:
                await asyncio.sleep(0.01)
            assert echo.info().result == "native"
            await until_nothing_is_held(server)

    asyncio.run(check())


@pytest.mark.parametrize("hosts", corpus([0, 1], lambda _: "any"))
def test_a_client_that_comes_late_gets_all_that_was_sent(guest_cache: Path, hosts: int) -> None:
    async def check() -> None:
        client = InProcessClient(FakeModel())
        async with started(guest_cache, client, hosts=hosts) as server, asyncio.timeout(HANG_SECONDS):
            program = (await server.upload(FLOOD.encode(), "flood")).program
            inferlet = await server.launch(program)
            while inferlet.outbox.kept_bytes < 3 << 20:
                await asyncio.sleep(0.01)
            heard: list[object] = []
            inferlet.attach(heard.append)
            while inferlet.ended is None:
                await asyncio.sleep(0.01)
            assert len(heard) == 41
            assert inferlet.info().result == '"sent"'

    asyncio.run(check())


REASONS = {
    signal.SIGKILL: "it was killed by signal 9",
    signal.SIGABRT: "it was killed by signal 6",
    signal.SIGSTOP: "it did not answer for 2 s and was killed (--host-timeout)",
}


@pytest.mark.parametrize("how", corpus(REASONS, kind=lambda how: "hangs" if how is signal.SIGSTOP else "dies"))
def test_a_host_that_dies_or_hangs_takes_only_its_own_inferlets(guest_cache: Path, how: signal.Signals) -> None:
    async def check() -> None:
        options = {"hosts": 2, "host_timeout": 2.0 if how is signal.SIGSTOP else 60.0}
        client = InProcessClient(FakeModel())
        async with started(guest_cache, client, **options) as server, asyncio.timeout(HANG_SECONDS):
            doomed, hears = await launch(server, GENERATE)
            neighbour, goes_on = await launch(server, GENERATE)
            idle = [await launch(server, WAIT) for _ in range(2)]
            await hears.until_messages(3)
            await goes_on.until_messages(3)
            for _, listener in idle:
                await listener.until_messages(1)
            assert {doomed.host, neighbour.host} == {1, 2}
            host = doomed.host
            (waits,) = [listener for entry, listener in idle if entry.host == host]
            before = host_pids(server)
            os.kill(before[host - 1], how)
            for listener in (hears, waits):
                ended = await listener.ended
                assert ended.status == "lost"
                assert (ended.error or "").startswith(f"application host {host} died ({REASONS[how]})")
                assert "launch again" in (ended.error or "")
            heard = "".join(hears.messages)
            while len("".join(goes_on.messages)) < len(heard) + 20:
                await goes_on.until_messages(len(goes_on.messages) + 1)
            assert "".join(goes_on.messages).startswith(heard), "they write the same"
            assert await run(server, GENERATE, {"tokens": 5}) == "over"
            while server.outages():
                await asyncio.sleep(0.05)
            assert [new == old for new, old in zip(host_pids(server), before, strict=True)] == [host != 1, host != 2]
            again, listener = await launch(server, WAIT)
            await listener.until_messages(1)
            assert again.host == host, "it has none yet"
            assert [one.restarts for one in server.statistics().hosts] == [int(host == 1), int(host == 2)]
            server.terminate(neighbour.id, "the test is over")
            assert (await goes_on.ended).status == "terminated"
            await until_nothing_is_held(server)

    asyncio.run(check())


def test_hosts_end_with_the_server(guest_cache: Path) -> None:
    async def check() -> list[int]:
        client = InProcessClient(FakeModel())
        async with started(guest_cache, client, hosts=2) as server, asyncio.timeout(HANG_SECONDS):
            _, listener = await launch(server, WAIT)
            await listener.until_messages(1)
            found = host_pids(server)
        assert (await listener.ended).error == "the server stops"
        return found

    assert not any(map(runs, asyncio.run(check())))
