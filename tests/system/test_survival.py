"""The whole system with a worker process of its own: what happens when parts of it die."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pie_control.client import Client
from pie_control.errors import InferletEnded, WorkerUnavailable
from tests.control.tenants.test_accounts import ALICE, written
from tests.helpers.guard import HANG_SECONDS
from tests.helpers.live_server import live_server
from tests.helpers.processes import below, until_gone
from tests.helpers.servers import launch, run, started, until_nothing_is_held, worker_pids
from tests.helpers.tiers import corpus
from tests.helpers.tree import DEMO_MODEL

GENERATE = """
from inferlet_sdk import Context, IgnoreStopTokens

async def main(args, tokens=100_000):
    context = Context(args.model)
    made = 0
    while made < tokens:
        context.fill("Once upon a time ")
        async for piece in context.generate(50, stop=IgnoreStopTokens()):
            made += 1
            await args.send(piece)
        context.truncate(10)
    return made
"""
WAIT = """
async def main(args):
    await args.send("ready")
    return await args.receive()
"""


def test_inferlets_are_told_of_a_killed_worker_and_the_next_launch_works(guest_cache: Path) -> None:
    async def check() -> None:
        async with started(guest_cache) as server, asyncio.timeout(HANG_SECONDS):
            _, generating = await launch(server, GENERATE)
            idle, waiting = await launch(server, WAIT)
            await generating.until_messages(3)
            await waiting.until_messages(1)
            os.kill(worker_pids(server, "demo")[0], signal.SIGKILL)
            ended = await generating.ended
            assert ended.status == "lost"
            assert "worker" in (ended.error or "")
            assert "launch again" in (ended.error or "")
            assert await run(server, GENERATE, {"tokens": 5}) >= 5
            idle.send("an inferlet that held nothing at the worker goes on")
            assert (await waiting.ended).status == "finished"
            (replica,) = server.statistics().models["demo"]
            assert replica.restarts == 1

    asyncio.run(check())


def test_an_inferlet_terminated_in_flight_leaves_nothing_and_disturbs_nobody(guest_cache: Path) -> None:
    async def check() -> None:
        async with started(guest_cache) as server, asyncio.timeout(HANG_SECONDS):
            other, staying = await launch(server, GENERATE)
            for _ in range(20):
                one, listener = await launch(server, GENERATE)
                await listener.until_messages(1)
                server.terminate(one.id, "the test says so")
                assert (await listener.ended).status == "terminated"
            seen = len(staying.messages)
            await staying.until_messages(seen + 20)
            server.terminate(other.id, "the test is over")
            await until_nothing_is_held(server)

    asyncio.run(check())


def test_a_full_pool_ends_the_youngest_and_the_oldest_goes_on(guest_cache: Path) -> None:
    hoard = """
from inferlet_sdk import Context
async def main(args, pages):
    from inferlet_sdk import traits
    queue = traits.create_queue(args.model)
    traits.alloc_kvpage(queue, pages)
    await traits.synchronize(queue)
    await args.send("held")
    await args.receive()
"""

    async def check() -> None:
        async with started(guest_cache, pages=200, max_pages=200) as server, asyncio.timeout(HANG_SECONDS):
            _, oldest = await launch(server, hoard, {"pages": 40})
            await oldest.until_messages(1)
            _, youngest = await launch(server, hoard, {"pages": 60})
            await youngest.until_messages(1)
            ((replica,),) = server.statistics().models.values()
            statistics = replica.scheduler
            left = statistics.pages.free
            third, _ = await launch(server, hoard, {"pages": left + 1})
            while third.info().status in ("created", "running"):
                await asyncio.sleep(0.01)
            assert third.info().status == "evicted"
            assert "pages" in (third.info().error or "")
            assert not oldest.ended.done()
            assert not youngest.ended.done()

    asyncio.run(check())


DAMAGES: list[tuple[Callable[[Path], object], str]] = [
    (lambda folder: (folder / "model.safetensors").write_bytes(b"\x08"), "model.safetensors"),
    (lambda folder: (folder / "model.safetensors").unlink(), "safetensors"),
    (lambda folder: (folder / "config.json").write_text('{"architectures": ["MambaForCausalLM"]}'), "Mamba"),
]


@pytest.mark.parametrize("done", corpus(DAMAGES, kind=lambda _: "a checkpoint"))
def test_an_unreadable_checkpoint_is_named(
    done: tuple[Callable[[Path], object], str], tmp_path: Path, guest_cache: Path
) -> None:
    damage, message = done
    folder = tmp_path / "broken"
    folder.mkdir()
    for file in DEMO_MODEL.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    damage(folder)

    async def check() -> None:
        async with started(guest_cache, model=str(folder)):
            pass

    with pytest.raises(WorkerUnavailable, match=message):
        asyncio.run(check())


@pytest.fixture
def temporary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The server's folder for temporary files."""
    return tmp_path_factory.mktemp("server")


@contextmanager
def serving(guest_cache: Path, temporary: Path, *options: str) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A `pie serve` process on a free port, which leads a process group of its own."""
    environment = {**os.environ, "PIE_CACHE_DIR": str(guest_cache), "TMPDIR": str(temporary)}
    command = [sys.executable, "-c", "from pie_control.cli.main import main; main()", "serve", "--port", "0"]
    process = subprocess.Popen(
        [*command, *options], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment, start_new_session=True
    )
    try:
        yield process, _address(process)
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def _address(process: subprocess.Popen[bytes]) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        text = line.decode()
        if "http://" in text:
            return "http://" + text.split("http://")[1].split()[0].rstrip("/.,")
    raise AssertionError("the server ended without telling its address")


@pytest.mark.parametrize("number", corpus([signal.SIGTERM, signal.SIGINT], kind=lambda _: "a signal"))
def test_a_signal_to_the_group_is_heard_by_the_server_alone(
    number: signal.Signals, guest_cache: Path, temporary: Path, tmp_path: Path
) -> None:
    """SIGHUP reads the tenants again, the others end everything: workers and hosts do neither of themselves."""
    tenants = written(tmp_path, f'[tenants.alice]\ntokens = ["{ALICE}"]')

    async def check(process: subprocess.Popen[bytes], url: str) -> None:
        async with Client(url, ALICE) as client:
            inferlets = [await client.launch(await client.upload(text.encode())) for text in (WAIT, GENERATE)]
            for inferlet in inferlets:
                await inferlet.receive()
            os.killpg(process.pid, signal.SIGHUP)
            assert process.stdout is not None
            told = b"the summary of the start"
            while told and b"from now on" not in told:
                told = await asyncio.to_thread(process.stdout.readline)
            assert told
            await inferlets[0].send("it goes on")
            assert await inferlets[0].result() == "it goes on"
            await inferlets[1].receive()
            os.killpg(process.pid, number)
            with pytest.raises(InferletEnded) as ended:
                await inferlets[1].result()
            assert ended.value.status == "terminated"

    options = ("--tenants", str(tenants), "--hosts", "2", "--drain-seconds", "0")
    with serving(guest_cache, temporary, *options) as (process, url):
        children = [child.pid for child in below(process.pid)]
        asyncio.run(asyncio.wait_for(check(process, url), HANG_SECONDS))
        assert process.wait(timeout=HANG_SECONDS) == 128 + number
        until_gone(*children)
        assert not list(temporary.rglob("*")), "nothing is left"
        assert process.stdout is not None
        said = process.stdout.read().splitlines()
        assert [b"no new work is taken; 1 inferlets" in line for line in said] == [True] * (number == signal.SIGTERM)


def test_a_killed_server_leaves_no_process(guest_cache: Path, temporary: Path) -> None:
    with serving(guest_cache, temporary) as (process, _):
        children = below(process.pid)
    assert {"pie_inference.serving", "pie_control.application.process"} <= {words[2] for words in children.values()}
    until_gone(*(child.pid for child in children))


def test_a_client_that_vanishes_takes_its_inferlets_with_it(guest_cache: Path) -> None:
    script = f"""
import asyncio, os, sys
from pie_control.client import Client
async def main():
    client = await Client(sys.argv[1]).__aenter__()
    program = await client.upload({GENERATE!r}.encode(), "generate")
    running = await client.launch(program)
    await running.receive()
    os._exit(9)
asyncio.run(main())
"""
    with live_server(guest_cache) as url:
        assert subprocess.run([sys.executable, "-c", script, url], check=False).returncode == 9
        deadline = time.monotonic() + HANG_SECONDS
        while time.monotonic() < deadline:
            with urllib.request.urlopen(f"{url}/v1/inferlets") as reply:
                (inferlet,) = json.load(reply)
            if inferlet["status"] == "terminated":
                return
            time.sleep(0.02)
        raise AssertionError(inferlet)


TOUCH = """
from inferlet_sdk import traits

async def main(args, model):
    queue = traits.create_queue(model)
    traits.alloc_kvpage(queue, 1)
    await traits.synchronize(queue)
    await args.send("placed")
    await args.receive()
    traits.alloc_kvpage(queue, 1)
    await traits.synchronize(queue)
    return traits.available_models()
"""


def test_two_models_with_two_workers_each_and_one_of_them_killed(guest_cache: Path) -> None:
    async def check() -> None:
        models = ["demo", "chat=demo"]
        async with started(guest_cache, model=models, replicas=2, pages=128) as server, asyncio.timeout(HANG_SECONDS):
            assert [model.name for model in server.models()] == ["demo", "chat"]
            placed = {}
            for model in ("demo", "chat"):
                for _ in range(2):
                    inferlet, listener = await launch(server, TOUCH, {"model": model})
                    await listener.until_messages(1)
                    placed[inferlet.id] = (model, inferlet, listener)
            loads = {
                name: [one.scheduler.inferlets for one in each] for name, each in server.statistics().models.items()
            }
            assert loads == {"demo": [1, 1], "chat": [1, 1]}
            os.kill(worker_pids(server, "chat")[0], signal.SIGKILL)
            chat = [listener for model, _, listener in placed.values() if model == "chat"]
            done, _ = await asyncio.wait([one.ended for one in chat], return_when=asyncio.FIRST_COMPLETED)
            (ended,) = [one.result() for one in done]
            assert ended.status == "lost"
            assert "the worker of model chat was lost" in (ended.error or "")
            for _, inferlet, listener in placed.values():
                if not listener.ended.done():
                    inferlet.send("go on")
                    ended = await listener.ended
                    assert (ended.status, json.loads(ended.result or "")) == ("finished", ["demo", "chat"])
            restarts = {name: sum(one.restarts for one in each) for name, each in server.statistics().models.items()}
            assert restarts["demo"] == 0

    asyncio.run(check())
