"""Blobs that come with messages, and bodies of responses as blobs: in the sandbox, on hosts of both kinds."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from pie_control.errors import BadRequest, Conflict, Overloaded, UnknownName
from pie_control.server_api import ServerApi
from pie_control.testing.fake_model import FakeModel
from pie_control.testing.in_process import InProcessClient
from tests.control.images.test_prepare import saved
from tests.helpers.guard import HANG_SECONDS
from tests.helpers.servers import hosted, launch, run, started
from tests.helpers.tiers import corpus
from tests.helpers.vision import picture
from tests.helpers.web import Asked, answer, serving

IMPORTS = "import asyncio\nfrom inferlet_sdk import *\nfrom inferlet_sdk import traits\n"
PHOTO, OTHER = saved(picture(64, 40)), saved(picture(20, 90, 3), "JPEG")

DESCRIBES = """
async def main(args):
    ctx = Context(args.model)
    while (message := await args.receive()) != "end":
        ctx.fill(message)
        for name, blob in message.blobs.items():
            ctx.fill_image(blob)
        text = await ctx.generate_until(IgnoreStopTokens(), 4)
        await args.send(str([message, sorted(message.blobs), blob.size if message.blobs else 0, len(ctx)]))
    return traits.blob_names()
"""
SAME = """
async def main(args):
    ctx = Context(args.model)
    ctx.fill("one ").fill_image("photo")
    await ctx.generate_until(IgnoreStopTokens(), 4)
    return len(ctx)
"""
HOLDS = """
async def main(args):
    kept = []
    while (message := await args.receive()) != "end":
        kept.append(message)
        await args.send(f"{len(kept)} {sum(blob.size for one in kept for blob in one.blobs.values())}")
        if message == "drop":
            kept.clear()
            traits.usage()
    return "end"
"""
FULL = """
async def main(args):
    first = await args.receive()
    try:
        await args.receive()
    except QuotaExceeded as error:
        said = str(error)
    first.blobs["a"].close()
    again = await args.receive()
    return [said, again, again.blobs["b"].read(0, 3).decode(), again.blobs["b"].text()[-3:]]
"""
BODIES = """
async def main(args, url=""):
    async with await http_get(url + "photo.png") as response:
        blob = await response.blob()
    ctx = Context(args.model).fill("one ").fill_image(blob)
    await ctx.generate_until(IgnoreStopTokens(), 4)
    echoed = await http_post(url + "echo", data=blob)
    found = [len(ctx), blob.name, blob.size, (await echoed.read()) == blob.read(), b"".join(blob) == blob.read()]
    errors = []
    for work in (response.blob, response.read, lambda: http_get(url, data=blob), lambda: kept(url + "cut"),
                 lambda: kept(url + "large")):
        try:
            await work()
            errors.append("no error")
        except (PieError, TypeError) as error:
            errors.append(f"{type(error).__name__}: {error}")
    blob.close()
    try:
        http_post(url, data=blob)
    except PieError as error:
        errors.append(str(error))
    return [found, errors]

async def kept(url):
    return await (await http_get(url)).blob()
"""
WAITS = """
async def main(args, url=""):
    responses = [await http_get(url) for _ in range(3)]
    tasks = [asyncio.ensure_future(response.blob()) for response in responses]
    await args.send("waits")
    await args.receive()
    tasks[0].cancel()
    await asyncio.gather(tasks[0], return_exceptions=True)
    await args.send("one less")
    await args.receive()
"""


def check(cache: Path, test: Callable[[ServerApi], Awaitable[None]], **options: Any) -> None:
    async def main() -> None:
        async with asyncio.timeout(HANG_SECONDS), started(cache, InProcessClient(FakeModel()), **options) as server:
            await test(server)

    asyncio.run(main())


async def put(server: ServerApi, **blobs: bytes) -> dict[str, str]:
    return {name: await server.upload_blob(data) for name, data in blobs.items()}


@pytest.mark.parametrize("hosts", corpus([1, 0], lambda _: "any"))
def test_images_come_with_messages(guest_cache: Path, hosts: int) -> None:
    async def test(server: ServerApi) -> None:
        length = await run(server, IMPORTS + SAME, blobs={"photo": PHOTO})
        entry, listener = await launch(server, IMPORTS + DESCRIBES)
        server.send(entry.id, "one ", await put(server, photo=PHOTO))
        await listener.until_messages(1)
        server.send(entry.id, "two ")
        server.send(entry.id, "three ", await put(server, photo=OTHER, more=PHOTO))
        await listener.until_messages(3)
        server.send(entry.id, "end")
        assert (await listener.ended).result == "[]"
        assert listener.messages[0] == str(["one ", ["photo"], len(PHOTO), length])
        assert listener.messages[1].startswith("['two ', [], 0, ")
        assert listener.messages[2].startswith("['three ', ['more', 'photo'], ")
        with pytest.raises(Conflict, match="has ended"):
            server.send(entry.id, "late", await put(server, photo=PHOTO))

    check(guest_cache, test, hosts=hosts)


def test_what_an_inferlet_drops_of_its_mail_is_given_back(guest_cache: Path) -> None:
    async def test(server: ServerApi) -> None:
        entry, listener = await launch(server, IMPORTS + HOLDS)
        for number in range(3):
            server.send(entry.id, "keep", await put(server, a=bytes(1000), b=bytes(500)))
            await listener.until_messages(number + 1)
            assert hosted(server, entry).blobs.bytes == 1500 * (number + 1)
        server.send(entry.id, "drop")
        server.send(entry.id, "keep")
        await listener.until_messages(5)
        assert listener.messages == ["1 1500", "2 3000", "3 4500", "4 4500", "1 0"]
        assert hosted(server, entry).blobs.bytes == 0
        server.send(entry.id, "keep", await put(server, a=bytes(1000)))
        await listener.until_messages(6)
        inferlet = hosted(server, entry)
        server.terminate(entry.id, "enough")
        await listener.ended
        assert inferlet.blobs.bytes == 0

    check(guest_cache, test)


@pytest.mark.parametrize("hosts", corpus([0, 1], lambda _: "any"))
def test_a_message_whose_blobs_do_not_fit_waits(guest_cache: Path, hosts: int) -> None:
    async def test(server: ServerApi) -> None:
        entry, listener = await launch(server, IMPORTS + FULL)
        server.send(entry.id, "first", await put(server, a=bytes(700)))
        while entry.status != "running" or vars(entry)["_inbox_blob_bytes"]:
            await asyncio.sleep(0)
        server.send(entry.id, "second", await put(server, b=b"abc" + bytes(694) + b"xyz"))
        ended = await listener.ended
        assert ended.status == "finished", ended.error
        said, *rest = json.loads(ended.result or "")
        assert "700 bytes of blobs and images are held and 700 more needed, the limit is 1000" in said
        assert rest == ["second", "abc", "xyz"]

    check(guest_cache, test, max_blob_bytes=1000, hosts=hosts)


def test_what_waits_for_an_inferlet_is_bounded(guest_cache: Path) -> None:
    async def test(server: ServerApi) -> None:
        entry, listener = await launch(server, "import asyncio\nasync def main(args):\n    await asyncio.sleep(1000)\n")
        blobs = await put(server, a=bytes(600))
        server.send(entry.id, "one", blobs)
        with pytest.raises(Overloaded, match="600 bytes of blobs wait for the inferlet, and 1000 may"):
            server.send(entry.id, "two", blobs)
        server.send(entry.id, "text still goes")
        with pytest.raises(BadRequest, match="more than 1000"):
            server.send(entry.id, "three", {"a": blobs["a"], "b": blobs["a"]})
        with pytest.raises(UnknownName, match="upload it again"):
            server.send(entry.id, "four", {"a": "0" * 64})
        server.terminate(entry.id, "enough")
        await listener.ended

    check(guest_cache, test, max_blob_bytes=1000)


async def site(asked: Asked, writer: asyncio.StreamWriter) -> None:
    if asked.path == "/photo.png":
        writer.write(answer(PHOTO))
    elif asked.path == "/echo":
        writer.write(answer(asked.body))
    elif asked.path == "/large":
        writer.write(answer(bytes(300_000)))
    elif asked.path == "/cut":
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n" + bytes(500))
    else:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n" + bytes(500))
        await asyncio.sleep(1000)


@pytest.mark.parametrize("hosts", corpus([1, 0], lambda _: "any"))
def test_bodies_of_responses_become_blobs(guest_cache: Path, hosts: int) -> None:
    async def main() -> None:
        async with serving(site) as web:
            allowed = f"127.0.0.1:{web.port}"

            async def test(server: ServerApi) -> None:
                length = await run(server, IMPORTS + SAME, blobs={"photo": PHOTO})
                found, errors = await run(server, IMPORTS + BODIES, {"url": web.url()})
                assert found == [length, "photo.png", len(PHOTO), True, True]
                assert "was read before, or closed" in errors[0]
                assert "was read before, or closed" in errors[1]
                assert errors[2] == "InvalidArgument: body: a GET request has none; use POST"
                assert errors[3].startswith("RequestFailed: 127.0.0.1 does not speak HTTP as it should")
                assert errors[4].startswith("QuotaExceeded: ")
                assert errors[5] == "the blob 'photo.png' is closed: use it before `close`, or before its `with` ends"
                await web.until_open(0)

            options: dict[str, Any] = {"hosts": hosts, "http_allow": allowed, "max_blob_bytes": 300_000}
            async with asyncio.timeout(HANG_SECONDS):
                async with started(guest_cache, InProcessClient(FakeModel()), **options) as server:
                    await test(server)

    asyncio.run(main())


def test_a_body_that_is_kept_is_given_up_with_its_future_and_with_the_inferlet(guest_cache: Path) -> None:
    async def main() -> None:
        async with serving(site) as web, asyncio.timeout(HANG_SECONDS):
            options: dict[str, Any] = {"http_allow": f"127.0.0.1:{web.port}"}
            async with started(guest_cache, InProcessClient(FakeModel()), **options) as server:
                entry, listener = await launch(server, IMPORTS + WAITS, {"url": web.url("/waits")})
                await listener.until_messages(1)
                blobs = hosted(server, entry).blobs
                while blobs.bytes < 1500:
                    await asyncio.sleep(0)
                server.send(entry.id, "cancel one")
                await listener.until_messages(2)
                assert blobs.bytes == 1000
                await web.until_open(2)
                server.send(entry.id, "end")
                await listener.ended
                assert blobs.bytes == 0
                await web.until_open(0)

    asyncio.run(main())
