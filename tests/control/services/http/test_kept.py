"""Connections that are kept for further requests, with real servers."""

from __future__ import annotations

import asyncio
import errno
import gzip
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from pie_control.errors import CallError
from pie_control.services.http import exchange, kept, outbound
from pie_control.services.http.outbound import HttpClient
from pie_control.tenants.tenant import Tenant
from tests.control.services.http.test_exchange import LOCAL, MOST_BYTES, Caller, at_once, check, echo
from tests.helpers.web import Asked, answer, serving


@asynccontextmanager
async def clients() -> AsyncIterator[tuple[HttpClient, Caller, Caller]]:
    """Two inferlets of one tenant."""
    client = HttpClient((LOCAL,))
    callers = [Caller(client.outbound(Tenant("t"), 16, MOST_BYTES, at_once)) for _ in range(2)]
    yield client, callers[0], callers[1]
    client.close()


async def get(client: HttpClient, caller: Caller, url: str, method: str = "GET", headers: str = "") -> str:
    """The answer, once its connection is free."""
    text = await caller.text(url, method=method, headers=headers)
    while client.under_way:
        await asyncio.sleep(0.001)
    return text


def test_what_could_not_be_loaded_is_loaded_at_the_next_request(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise OSError(errno.EMFILE, "too many open files")

    async def test() -> None:
        async with clients() as (client, one, _), serving(echo, keeps=True) as web:
            with monkeypatch.context() as patched:
                patched.setattr(outbound, "_load", fail)
                with pytest.raises(CallError):
                    await one.text(web.url())
            assert await get(client, one, web.url("/again")) == "/again"

    check(test)


def test_a_connection_serves_one_request_after_the_other_of_a_tenant() -> None:
    async def test() -> None:
        async with clients() as (client, one, two), serving(echo, keeps=True) as web:
            for place, caller in enumerate((one, two, one)):
                assert await get(client, caller, web.url(f"/{place}")) == f"/{place}"
            assert web.connections == 1
            client.close()
            await web.until_open(0)

    check(test)


def test_no_other_tenant_or_server_gets_it() -> None:
    async def test() -> None:
        async with clients() as (client, one, _), serving(echo, keeps=True) as web, serving(echo, keeps=True) as other:
            await get(client, one, web.url())
            stranger = Caller(client.outbound(Tenant("u"), 16, MOST_BYTES, at_once))
            await get(client, stranger, web.url())
            assert web.connections == 2
            await get(client, one, other.url())
            assert other.connections == 1
            client.close()

    check(test)


def test_what_may_not_be_sent_twice_has_a_connection_of_its_own() -> None:
    async def test() -> None:
        async with clients() as (client, one, _), serving(echo, keeps=True) as web:
            await get(client, one, web.url())
            await get(client, one, web.url(), method="POST")
            assert web.connections == 2
            client.close()

    check(test)


@pytest.mark.parametrize("scheme", ["Negotiate x", "NTLM x"])
def test_one_that_has_been_authorized_is_not_kept(scheme: str) -> None:
    async def test() -> None:
        async with clients() as (client, one, _), serving(echo, keeps=True) as web:
            await get(client, one, web.url(), headers=f'[["Authorization", "{scheme}"]]')
            await web.until_open(0)

    check(test)


def test_a_request_on_one_that_breaks_goes_again_on_another() -> None:
    async def test() -> None:
        async def handler(asked: Asked, writer: asyncio.StreamWriter) -> None:
            if len(web.asked) == 2:
                raise ConnectionError
            writer.write(answer(asked.path.encode()))

        async with clients() as (client, one, _), serving(handler, keeps=True) as web:
            assert [await get(client, one, web.url(f"/{place}")) for place in range(2)] == ["/0", "/1"]
            assert [asked.path for asked in web.asked] == ["/0", "/1", "/1"]
            assert web.connections == 2
            client.close()

    check(test)


def test_one_that_the_server_has_closed_is_not_used() -> None:
    async def test() -> None:
        async with clients() as (client, one, _), serving(echo) as web:
            for count in (1, 2):
                await get(client, one, web.url())
                await web.until_open(0)
                assert (len(web.asked), web.connections) == (count, count)

    check(test)


def test_a_response_that_is_not_read_to_its_end_ends_its_connection() -> None:
    async def large(_: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(answer(bytes(MOST_BYTES)))

    async def test() -> None:
        async with clients() as (_, one, __), serving(large, keeps=True) as web:
            (await one.head(web.url())).exchange.close()
            await web.until_open(0)

    check(test)


def test_a_short_response_that_is_not_wanted_leaves_its_connection() -> None:
    gate = asyncio.Event()

    async def late(asked: Asked, writer: asyncio.StreamWriter) -> None:
        head, body = answer(gzip.compress(b"x"), "200 OK", "Content-Encoding: gzip").split(b"\r\n\r\n")
        writer.write(head + b"\r\n\r\n")
        if asked.path == "/late":
            await gate.wait()
        writer.write(body)

    async def test() -> None:
        async with clients() as (client, one, other), serving(late, keeps=True) as web:
            head = await one.head(web.url("/late"))
            head.exchange.close()
            head.exchange.close()
            assert (len(one.outbound), client.under_way) == (0, 1)  # its inferlet may ask for something else
            gate.set()
            while client.under_way:
                await asyncio.sleep(0.001)
            assert await get(client, other, web.url()) == "x"
            assert (len(web.asked), web.connections) == (2, 1)

    check(test)


def test_the_rest_of_a_response_that_does_not_come_ends_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "REST_SECONDS", 0.01)

    async def half(_: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(answer(b"xy")[:-1])
        await writer.drain()
        await asyncio.sleep(1000)

    async def test() -> None:
        async with clients() as (client, one, _), serving(half, keeps=True) as web:
            (await one.head(web.url())).exchange.close()
            while client.under_way:
                await asyncio.sleep(0.001)
            assert len(vars(client)["_network"].result().kept) == 0

    check(test)


def test_few_are_kept_and_not_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "MOST_KEPT", 2)

    async def test() -> None:
        everybody = asyncio.Event()

        async def handler(asked: Asked, writer: asyncio.StreamWriter) -> None:
            if len(web.asked) == 4:
                everybody.set()
            await everybody.wait()
            writer.write(answer(b"x"))

        async with clients() as (client, one, _), serving(handler, keeps=True) as web:
            await asyncio.gather(*(get(client, one, web.url()) for _ in range(4)))
            await web.until_open(2)
            monkeypatch.setattr(kept, "KEPT_SECONDS", 0.0)
            await get(client, one, web.url())
            await web.until_open(1)
            client.close()
            await web.until_open(0)

    check(test)
