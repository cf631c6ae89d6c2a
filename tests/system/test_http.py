"""Inferlets that ask servers outside: in the sandbox, on hosts in this process and in processes of their own."""

from __future__ import annotations

import asyncio
import gzip
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from pie_control.server_api import ServerApi
from pie_control.services.http.decoding import PIECE_BYTES, Gunzip
from pie_control.testing.fake_model import FakeModel
from pie_control.testing.in_process import InProcessClient
from tests.helpers.guard import HANG_SECONDS
from tests.helpers.servers import hosted, launch, run, started
from tests.helpers.tiers import corpus
from tests.helpers.web import Asked, Web, answer, serving
from tests.system.test_hostile_programs import NEIGHBOUR

IMPORTS = "import asyncio\nfrom inferlet_sdk import *\n"
AGENT = """
import asyncio, json
from inferlet_sdk import Context, gather, http_get, http_post

async def main(args, url=""):
    async def ask(number):
        response = await http_get(f"{url}/{number}", params={"q": "a b"})
        return await response.text()
    answers = await gather(*(ask(number) for number in range(12)))
    posted = await (await http_post(url, json={"answers": answers})).json()
    streamed = [line async for line in (await http_post(url, text="1\\n2\\n3")).lines()]
    text = await Context(args.model).fill(json.dumps(posted)).generate_until(max_tokens=5)
    return [answers == [f"/{n}?q=a+b" for n in range(12)], posted["answers"] == answers, streamed, len(text) > 0]
"""
CANCELS = """
import asyncio
from inferlet_sdk import http_get, traits

async def main(args, url=""):
    futures = [http_get(url) for _ in range(4)]
    tasks = [asyncio.ensure_future(wait(future)) for future in futures[1:]]
    await args.send("sent")
    await args.receive()
    futures[0].cancel()
    await args.send("one")
    await args.receive()
    tasks[0].cancel()
    try:
        async with asyncio.timeout(0.001):
            await asyncio.gather(*tasks[1:])
    except TimeoutError:
        pass
    await asyncio.gather(*tasks, return_exceptions=True)
    await args.send("all")
    await args.receive()
    return traits.usage().futures

async def wait(future):
    return await future
"""
GIVES_UP = """
import base64
from inferlet_sdk import http_get
from inferlet_sdk.bindings import core, http

async def main(args, url=""):
    body, _ = http.await_response(http.http_request("GET", url, "", "", ""))
    read = b""
    while True:
        given_up = http.read_body(body, 5)
        core.wait([given_up])
        core.cancel(given_up)
        piece = base64.b64decode(core.await_text(http.read_body(body, 3)))
        if not piece:
            return read.decode()
        read += piece
"""
HOLDS = """
from inferlet_sdk import http_get

async def main(args, url="", how="return"):
    responses = [await http_get(url) for _ in range(3)]
    pending = http_get(url + "silent")
    await args.send("holds")
    await args.receive()
    if how == "raise":
        raise ValueError("an error of its own")
"""


async def echo(asked: Asked, writer: asyncio.StreamWriter) -> None:
    writer.write(answer(asked.body or asked.path.encode()))


async def endless(asked: Asked, writer: asyncio.StreamWriter) -> None:
    if asked.path == "/silent":
        await asyncio.sleep(1000)
    writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:
        writer.write(bytes(1 << 16))
        await writer.drain()


def check(
    cache: Path, handler: Any, hosts: int, test: Callable[[ServerApi, Web], Awaitable[None]], **options: Any
) -> None:
    async def main() -> None:
        async with serving(handler) as web, asyncio.timeout(HANG_SECONDS):
            client = InProcessClient(FakeModel(num_pages=4096))
            async with started(cache, client, hosts=hosts, http_allow=f"127.0.0.1:{web.port}", **options) as server:
                await test(server, web)

    asyncio.run(main())


@pytest.mark.parametrize("hosts", corpus([2, 0], lambda _: "any"))
def test_an_agent_asks_a_server(guest_cache: Path, hosts: int) -> None:
    async def test(server: ServerApi, web: Web) -> None:
        results = await asyncio.gather(*(run(server, AGENT, {"url": web.url("")}) for _ in range(3)))
        assert results == [[True, True, ["1", "2", "3"], True]] * 3
        assert len(web.asked) == 3 * 14
        await web.until_open(0)

    check(guest_cache, echo, hosts, test)


def test_cancelling_ends_the_request(guest_cache: Path) -> None:
    async def silent(_: Asked, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(1000)

    async def test(server: ServerApi, web: Web) -> None:
        entry, listener = await launch(server, CANCELS, {"url": web.url()})
        for messages, left in ((1, 4), (2, 3), (3, 0)):
            await listener.until_messages(messages)
            await web.until_open(left)
            entry.send("go on")
        assert (await listener.ended).result == "0"

    check(guest_cache, silent, 0, test)


def test_what_has_come_for_a_read_that_is_cancelled_is_read_next(guest_cache: Path) -> None:
    async def test(server: ServerApi, web: Web) -> None:
        assert await run(server, GIVES_UP, {"url": web.url("/a/long/path")}) == "/a/long/path"

    check(guest_cache, echo, 0, test)


@pytest.mark.parametrize("how", ["return", "raise", "terminate"])
def test_the_end_of_an_inferlet_closes_its_connections(guest_cache: Path, how: str) -> None:
    async def test(server: ServerApi, web: Web) -> None:
        entry, listener = await launch(server, HOLDS, {"url": web.url(), "how": how})
        await listener.until_messages(1)
        await web.until_open(4)
        guest: Any = hosted(server, entry).holdings
        outbound = guest.outbound
        if how == "terminate":
            server.terminate(entry.id, "enough")
        else:
            entry.send("end")
        await listener.ended
        await web.until_open(0)
        assert len(outbound) == 0

    check(guest_cache, endless, 0, test)


@pytest.mark.parametrize("hosts", corpus([0, 1], lambda _: "any"))
def test_neighbours_of_one_that_reads_without_end_go_on(guest_cache: Path, hosts: int) -> None:
    reads = "\nasync def main(args, url=''):\n    async for _ in await http_get(url):\n        pass\n"

    async def test(server: ServerApi, web: Web) -> None:
        _, neighbour = await launch(server, NEIGHBOUR)
        await neighbour.until_messages(1)
        _, listener = await launch(server, IMPORTS + reads, {"url": web.url()})
        ended = await listener.ended
        assert "more than 16777216 bytes" in (ended.error or "")
        assert len(neighbour.messages) >= 3
        after = len(neighbour.messages)
        await neighbour.until_messages(after + 3)

    check(guest_cache, endless, hosts, test)


def test_unpacking_is_charged_to_who_asked(guest_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = "\nasync def main(args, url=''):\n    return len(await (await http_get(url)).read())\n"
    piece = Gunzip.piece

    def slow(self: Gunzip) -> bytes:
        begun = time.thread_time()
        while time.thread_time() < begun + 0.25:
            pass
        return piece(self)

    async def packed(_: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(answer(gzip.compress(bytes(100 * PIECE_BYTES)), "200 OK", "Content-Encoding: gzip"))

    async def test(server: ServerApi, web: Web) -> None:
        _, neighbour = await launch(server, NEIGHBOUR)
        await neighbour.until_messages(1)
        _, listener = await launch(server, IMPORTS + reads, {"url": web.url()})
        assert (await listener.ended).status == "exceeded"
        await neighbour.until_messages(len(neighbour.messages) + 3)

    monkeypatch.setattr(Gunzip, "piece", slow)
    check(guest_cache, packed, 0, test, cpu_seconds=1, cpu_refill=0)


def test_errors_tell_what_to_do(guest_cache: Path) -> None:
    source = """
async def main(args):
    told = []
    for url in ("http://other.example/", "http://127.0.0.1:1/"):
        try:
            await http_get(url)
        except NotAllowed as error:
            told.append([error.code, error.message])
    return told
"""

    async def test(server: ServerApi, web: Web) -> None:
        told = await run(server, IMPORTS + source)
        assert [code for code, _ in told] == ["not-allowed"] * 2
        assert told[0][1].endswith("with --http-allow other.example")
        assert told[1][1].endswith("with --http-allow 127.0.0.1:1")

    check(guest_cache, echo, 0, test)


def test_a_server_without_a_list_makes_no_requests(guest_cache: Path) -> None:
    async def main() -> None:
        source = IMPORTS + "async def main(args):\n    await http_get('https://api.example.com/')\n"
        async with started(guest_cache, InProcessClient(FakeModel())) as server, asyncio.timeout(HANG_SECONDS):
            _, listener = await launch(server, source)
            error = (await listener.ended).error or ""
            assert "makes no outgoing HTTP requests" in error
            assert "--http-allow api.example.com" in error

    asyncio.run(main())
