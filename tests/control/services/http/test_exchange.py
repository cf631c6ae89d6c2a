"""Requests to real servers on this machine, good and bad ones."""

from __future__ import annotations

import asyncio
import gzip
import random
import socket
import ssl
import subprocess
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest

from pie_control.errors import CallError, Exhausted, InvalidState, NotAllowed, QuotaExceeded, RequestFailed, TimedOut
from pie_control.services.http.decoding import PIECE_BYTES
from pie_control.services.http.exchange import Chunk, Exchange, Head, Work
from pie_control.services.http.network import SLICE_BYTES, Slices
from pie_control.services.http.outbound import HttpClient, Outbound
from pie_control.services.http.request import new_request
from pie_control.tenants.tenant import Tenant
from tests.helpers.guard import HANG_SECONDS
from tests.helpers.web import Asked, Web, answer, redirect, serving

SECONDS = 60.0
LOCAL = "127.0.0.0/8:*"
MOST_BYTES = 1 << 20


class Caller:
    """Asks as an inferlet does, and waits for answers."""

    def __init__(self, outbound: Outbound) -> None:
        self.outbound = outbound

    def begin(
        self, url: str, method: str = "GET", body: bytes | bytearray = b"", options: str = "", headers: str = ""
    ) -> tuple[Exchange, asyncio.Future[Any]]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        request = new_request(method, url, headers, body, options, SECONDS)
        return self.outbound.begin(request, future.set_result), future

    async def head(self, url: str, **options: Any) -> Head:
        value = await self.begin(url, **options)[1]
        if isinstance(value, CallError):
            raise value
        assert isinstance(value, Head)
        return value

    async def chunk(self, head: Head, most: int = 1 << 16) -> Chunk:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        head.exchange.read(most, future.set_result)
        value = await future
        if isinstance(value, CallError):
            raise value
        assert isinstance(value, Chunk)
        return value

    async def read(self, head: Head, most: int = 1 << 16) -> bytes:
        return (await self.chunk(head, most)).data

    async def whole(self, head: Head) -> bytes:
        pieces = []
        while piece := await self.read(head):
            pieces.append(piece)
        return b"".join(pieces)

    async def text(self, url: str, **options: Any) -> str:
        return (await self.whole(await self.head(url, **options))).decode()


def check(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(HANG_SECONDS):
            await test()

    asyncio.run(limited())


async def at_once(work: Callable[[], Any]) -> Any:
    return work()


@asynccontextmanager
async def calling(
    *allow: str, most: int = 16, of_all: int = 100, work: Work | None = None, **tenant: Any
) -> AsyncIterator[Caller]:
    client = HttpClient(allow or (LOCAL,), of_all)
    outbound = client.outbound(Tenant("t", **tenant), most, MOST_BYTES, work or at_once)
    yield Caller(outbound)
    outbound.close()
    while client.under_way:
        await asyncio.sleep(0.001)
    assert len(outbound) == 0
    client.close()


async def echo(asked: Asked, writer: asyncio.StreamWriter) -> None:
    writer.write(answer(asked.body or asked.path.encode(), "200 OK", "X-Two: 1", "X-Two: 2"))


def test_what_is_sent_and_what_comes_back() -> None:
    async def test() -> None:
        async with calling() as caller, serving(echo) as web:
            head = await caller.head(web.url("/a?b"), headers='[["X-Mine", "yes"], ["User-Agent", "me"]]')
            assert (head.status, head.url) == (200, web.url("/a?b"))
            assert [value for name, value in head.headers if name == "x-two"] == ["1", "2"]
            assert await caller.whole(head) == b"/a?b"
            assert await caller.read(head) == b""  # the end stays
            assert await caller.text(web.url(), method="POST", body=b"body") == "body"
            first, second = web.asked
            assert first.headers["host"] == f"127.0.0.1:{web.port}"
            assert (first.headers["x-mine"], first.headers["user-agent"]) == ("yes", "me")
            assert second.headers["content-length"] == "4"

    check(test)


def test_a_proxy_of_the_environment_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        async with calling() as caller, serving(echo) as web, serving(echo) as proxy:
            for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY", "https_proxy"):
                monkeypatch.setenv(name, proxy.url())
            await caller.text(web.url())
            assert (len(web.asked), len(proxy.asked)) == (1, 0)

    check(test)


def test_no_cookies_are_kept() -> None:
    async def handler(_: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(answer(b"x", "200 OK", "Set-Cookie: a=b"))

    async def test() -> None:
        async with calling() as caller, serving(handler) as web:
            for _ in range(2):
                await caller.text(web.url())
            assert not any("cookie" in asked.headers for asked in web.asked)

    check(test)


# ---- where it may not go ----


class Names:
    """What `getaddrinfo` says: for each name a list of answers, one after the other; the last one stays."""

    def __init__(self, **answers: list[str]) -> None:
        self.answers = answers
        self.asked: list[str] = []

    def __call__(self, host: str, port: int, **_: Any) -> list[Any]:
        self.asked.append(host)
        if host.replace(".", "").isdecimal():
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port))]
        answers = self.answers.get(host)
        if answers is None:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        addresses = answers.pop(0) if len(answers) > 1 else answers[0]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in addresses.split()]


def test_a_name_of_a_private_address_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        async with serving(echo) as web:
            for address in ("127.0.0.1", "10.0.0.1", "169.254.169.254", "100.64.0.9", "::ffff:7f00:1"):
                monkeypatch.setattr(socket, "getaddrinfo", Names(internal=[address]))
                async with calling("*:*") as caller:
                    with pytest.raises(
                        NotAllowed, match=f"internal is at {ip_address(address)}, which is .*--http-allow"
                    ):
                        await caller.head(web.url(host="internal"))
            assert web.connections == 0

    check(test)


def test_a_name_that_is_not_allowed_is_not_even_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    names = Names(secret=["8.8.8.8"])
    monkeypatch.setattr(socket, "getaddrinfo", names)

    async def test() -> None:
        async with calling("api.example") as caller:
            with pytest.raises(NotAllowed):
                caller.begin("http://secret/")
            assert names.asked == []

    check(test)


def test_the_address_that_was_checked_is_connected_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that is asked about twice may answer twice, as rebinding does; it is asked once."""
    names = Names(rebinds=["127.0.0.1", "127.0.0.2"])
    monkeypatch.setattr(socket, "getaddrinfo", names)

    async def test() -> None:
        async with serving(echo) as web, calling("rebinds:*", "127.0.0.1:*") as caller:
            await caller.text(web.url(host="rebinds"))
            assert names.asked.count("rebinds") == 1
            with pytest.raises(NotAllowed, match=r"127\.0\.0\.2"):
                await caller.head(web.url(host="rebinds"))
            assert web.connections == 1

    check(test)


def test_of_several_addresses_the_allowed_ones_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", Names(both=["10.0.0.1 127.0.0.3 127.0.0.1"]))

    async def test() -> None:
        async with serving(echo) as web, calling("both:*", LOCAL) as caller:  # nobody listens at 127.0.0.3
            assert await caller.text(web.url(host="both")) == "/"

    check(test)


@pytest.mark.parametrize("host", ["2130706433", "0x7f.1", "127.1", "0177.0.0.1"])
def test_other_ways_to_write_an_address_change_nothing(host: str) -> None:
    async def test() -> None:
        async with serving(echo) as web, calling("*:*") as caller:
            with pytest.raises((NotAllowed, RequestFailed)):
                await caller.head(web.url(host=host))
            assert web.connections == 0

    check(test)


def test_a_redirect_is_checked_like_a_request() -> None:
    async def test() -> None:
        async with serving(echo) as inner:

            async def handler(asked: Asked, writer: asyncio.StreamWriter) -> None:
                writer.write(redirect({"/private": inner.url(), "/other": "http://other.example/"}[asked.path]))

            async with serving(handler) as outer, calling(f"127.0.0.1:{outer.port}") as caller:
                for path in ("/private", "/other"):
                    with pytest.raises(NotAllowed, match="--http-allow"):
                        await caller.head(outer.url(path))
                assert inner.connections == 0

    check(test)


def test_redirects_are_followed_and_counted() -> None:
    async def handler(asked: Asked, writer: asyncio.StreamWriter) -> None:
        number = int(asked.path[1:])
        writer.write(redirect(f"/{number - 1}") if number else answer(b"there"))

    async def test() -> None:
        async with serving(handler) as web, calling() as caller:
            head = await caller.head(web.url("/5"))
            assert (head.status, head.url, await caller.whole(head)) == (200, web.url("/0"), b"there")
            head = await caller.head(web.url("/6"))
            assert (head.status, head.url) == (302, web.url("/1"))
            assert (await caller.head(web.url("/6"), options='{"redirects": 0}')).status == 302
            assert (await caller.head(web.url("/9"), options='{"redirects": 10}')).status == 200

    check(test)


def test_a_tenant_has_a_list_of_its_own() -> None:
    async def test() -> None:
        async with serving(echo) as web:
            async with calling(LOCAL, http_allow=("api.example",)) as caller:
                with pytest.raises(NotAllowed, match=r"with http_allow = \[\"127.*\"\] of tenant t$"):
                    await caller.head(web.url())
            async with calling("api.example", http_allow=(LOCAL,)) as caller:
                assert await caller.text(web.url()) == "/"

    check(test)


# ---- servers that behave badly ----


async def endless(_: Asked, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:
        writer.write(bytes(1 << 16))
        await writer.drain()


async def silent(_: Asked, __: asyncio.StreamWriter) -> None:
    await asyncio.sleep(1000)


async def trickle(_: Asked, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:
        writer.write(b"x")
        await asyncio.sleep(0.001)


async def endless_headers(_: Asked, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n")
    while True:
        writer.write(b"X: " + b"y" * 10_000 + b"\r\n")
        await writer.drain()


async def endless_information(_: Asked, writer: asyncio.StreamWriter) -> None:
    while True:
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n" * 1000)
        await writer.drain()


async def bomb(_: Asked, writer: asyncio.StreamWriter) -> None:
    writer.write(answer(gzip.compress(bytes(100 << 20), 1), "200 OK", "Content-Encoding: gzip"))


async def nothing_packed(_: Asked, writer: asyncio.StreamWriter) -> None:
    """Empty members of gzip for ever: nothing ever comes out."""
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n")
    while True:
        writer.write(gzip.compress(b"") * 500)
        await writer.drain()


async def garbage(_: Asked, writer: asyncio.StreamWriter) -> None:
    writer.write(b"SSH-2.0-OpenSSH_9.2\r\n")


async def cut_short(_: Asked, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")


async def cut_gzip(_: Asked, writer: asyncio.StreamWriter) -> None:
    writer.write(answer(gzip.compress(b"x" * 1000)[:-9], "200 OK", "Content-Encoding: gzip"))


async def hang_up(_: Asked, writer: asyncio.StreamWriter) -> None:
    writer.close()


@pytest.mark.parametrize(
    ("handler", "error", "why"),
    [
        (endless, RequestFailed, "more than 1048576 bytes.*max_http_bytes"),
        (bomb, RequestFailed, "more than 1048576 bytes"),
        (nothing_packed, RequestFailed, "65 files of gzip for 0 bytes"),
        (silent, TimedOut, "not done within 0.3 s"),
        (trickle, TimedOut, "not done within 0.3 s"),
        (endless_information, RequestFailed, "more than 65536 bytes before its answer"),
        (endless_headers, RequestFailed, "more than 65536 bytes before its answer"),
        (garbage, RequestFailed, "does not speak HTTP"),
        (hang_up, RequestFailed, "does not speak HTTP"),
        (cut_short, RequestFailed, "does not speak HTTP"),
        (cut_gzip, RequestFailed, "ends in the middle"),
    ],
)
def test_a_bad_server_costs_a_clear_error(handler: Any, error: type[CallError], why: str) -> None:
    options = '{"timeout": 0.3}' if error is TimedOut else ""

    async def test() -> None:
        async with serving(handler) as web, calling() as caller:
            with pytest.raises(error, match=why) as failure:
                await caller.text(web.url(), options=options)
            assert type(failure.value) is error
            await web.until_open(0)
            assert len(caller.outbound) == 0

    check(test)


def test_all_that_is_packed_is_unpacked_at_the_cost_of_who_asked() -> None:
    body = random.Random(1).randbytes(3 * PIECE_BYTES)
    done: list[int] = []

    async def counted(work: Callable[[], bytes]) -> bytes:
        piece = work()
        done.append(len(piece))
        return piece

    async def packed(_: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(answer(gzip.compress(body), "200 OK", "Content-Encoding: gzip"))

    async def test() -> None:
        async with serving(packed) as web, calling(work=counted) as caller:
            assert await caller.whole(await caller.head(web.url())) == body
            assert sum(done) == len(body)
            assert max(done) <= PIECE_BYTES

    check(test)


def test_a_server_that_is_not_there() -> None:
    async def test() -> None:
        async with serving(echo) as web:
            url = web.url()
        async with calling() as caller:
            with pytest.raises(RequestFailed, match=r"no connection to 127\.0\.0\.1:\d+ \(.*\): see that a server is"):
                await caller.head(url)
            assert len(caller.outbound) == 0

    check(test)


def test_a_name_without_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", Names())

    async def test() -> None:
        async with calling("*") as caller:
            with pytest.raises(RequestFailed, match="no-such-name has no address: Name or service not known"):
                await caller.head("http://no-such-name/")

    check(test)


def test_who_does_not_read_makes_the_server_wait() -> None:
    written = 0

    async def handler(_asked: Asked, writer: asyncio.StreamWriter) -> None:
        nonlocal written
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        for _ in range(1000):
            writer.write(bytes(1 << 16))
            await writer.drain()
            written += 1 << 16

    async def test() -> None:
        nonlocal written
        async with serving(handler) as web, calling() as caller:
            head = await caller.head(web.url())
            before = -1
            while before != written:  # until the buffers of the system are full
                before = written
                await asyncio.sleep(0.2)
            assert written < 60 << 20
            kept = sum(len(piece) for piece in vars_of(head.exchange)["_pieces"])
            assert kept <= 1 << 16

    check(test)


def vars_of(exchange: Exchange) -> dict[str, Any]:
    return vars(exchange)


# ---- ends ----


def test_closing_ends_the_connection_at_every_stage() -> None:
    async def test() -> None:
        async with serving(silent) as web, calling() as caller:
            exchange, future = caller.begin(web.url())
            await web.until_open(1)
            exchange.close()
            await web.until_open(0)
            assert not future.done()
        async with serving(endless) as web, calling() as caller:
            head = await caller.head(web.url())
            assert len(await caller.read(head, 10)) == 10
            head.exchange.close()
            await web.until_open(0)

    check(test)


def test_the_end_of_the_inferlet_closes_everything() -> None:
    async def test() -> None:
        async with serving(silent) as web, calling() as caller:
            for _ in range(5):
                caller.begin(web.url())
            await web.until_open(5)
            caller.outbound.close()
            await web.until_open(0)

    check(test)


def test_a_short_response_holds_no_connection() -> None:
    async def test() -> None:
        async with serving(echo) as web, calling() as caller:
            head = await caller.head(web.url())
            await web.until_open(0)
            while len(caller.outbound):
                await asyncio.sleep(0.001)
            assert await caller.whole(head) == b"/"

    check(test)


def test_a_read_that_is_not_wanted_loses_nothing() -> None:
    gate = asyncio.Event()

    async def handler(_: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        await gate.wait()
        writer.write(b"late")

    async def test() -> None:
        async with serving(handler) as web, calling() as caller:
            head = await caller.head(web.url())
            head.exchange.read(10, lambda _: pytest.fail("it was given up"))
            with pytest.raises(InvalidState, match="being read"):
                head.exchange.read(10, lambda _: None)
            head.exchange.stop_reading()
            gate.set()
            assert await caller.whole(head) == b"late"

    check(test)


def test_a_piece_that_is_not_taken_is_read_again() -> None:
    async def handler(_: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(answer(b"one two three"))

    async def test() -> None:
        async with serving(handler) as web, calling() as caller:
            head, read = await caller.head(web.url()), b""
            for most in (4, 5, 13, 13):
                (await caller.chunk(head, most)).not_taken()
                read += await caller.read(head, 4)
            (await caller.chunk(head)).not_taken()
            assert await caller.read(head) == b""
            assert read == b"one two three"

    check(test)


def test_requests_of_one_and_of_all_are_bounded() -> None:
    async def test() -> None:
        async with serving(silent) as web, calling(most=2, of_all=3) as caller:
            for _ in range(2):
                caller.begin(web.url())
            with pytest.raises(QuotaExceeded, match="2 requests are open"):
                caller.begin(web.url())
            client = vars(caller.outbound)["_client"]
            other = Caller(client.outbound(Tenant("u"), 16, MOST_BYTES, at_once))
            third, _ = other.begin(web.url())
            with pytest.raises(Exhausted, match="have 3 requests open"):
                other.begin(web.url())
            third.close()
            await web.until_open(2)
            while client.under_way == 3:
                await asyncio.sleep(0.001)
            other.begin(web.url())[0].close()

    check(test)


def test_one_tenant_leaves_requests_for_others() -> None:
    async def test() -> None:
        async with serving(silent) as web, calling(most=100, of_all=16) as caller:
            client = vars(caller.outbound)["_client"]
            mine = [caller.begin(web.url())[0] for _ in range(12)]
            with pytest.raises(Exhausted, match="12 of them of tenant t: of 16 some are left"):
                caller.begin(web.url())
            other = Caller(client.outbound(Tenant("u"), 100, MOST_BYTES, at_once))
            theirs = [other.begin(web.url())[0] for _ in range(3)]
            with pytest.raises(Exhausted, match="3 of them of tenant u"):
                other.begin(web.url())
            for exchange in theirs + mine[:1]:
                exchange.close()
            while client.under_way > 11:
                await asyncio.sleep(0.001)
            caller.begin(web.url())

    check(test)


def names_that_hang(monkeypatch: pytest.MonkeyPatch) -> tuple[threading.Event, threading.Semaphore]:
    """The name "hangs" is looked up until the event is set; the semaphore is released as often as that begins."""
    gate, hanging = threading.Event(), threading.Semaphore(0)
    real = Names(good=["127.0.0.1"])

    def hangs(host: str, port: int, **options: Any) -> list[Any]:
        if host != "hangs":
            return real(host, port, **options)
        hanging.release()
        gate.wait(HANG_SECONDS)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", hangs)
    return gate, hanging


def test_names_of_two_tenants_that_hang_hold_up_no_third(monkeypatch: pytest.MonkeyPatch) -> None:
    gate, hanging = names_that_hang(monkeypatch)

    async def test() -> None:
        async with serving(echo) as web, calling("*:*", LOCAL) as caller:
            client = vars(caller.outbound)["_client"]
            many = [Caller(client.outbound(Tenant(one), 16, MOST_BYTES, at_once)) for one in "ttttuuuu"]
            exchanges = [one.begin("http://hangs/")[0] for one in many for _ in range(4)]
            try:
                for _ in range(16 + 8):
                    await asyncio.to_thread(hanging.acquire, timeout=HANG_SECONDS)
                other = Caller(client.outbound(Tenant("v"), 16, MOST_BYTES, at_once))
                assert await other.text(web.url(host="good")) == "/"
                assert not hanging.acquire(blocking=False), "some threads are left for others"
            finally:
                gate.set()
                for exchange in exchanges:
                    exchange.close()
            assert await many[0].text(web.url(host="good")) == "/"

    check(test)


def test_names_that_hang_hold_up_no_other_inferlet(monkeypatch: pytest.MonkeyPatch) -> None:
    gate, hanging = names_that_hang(monkeypatch)

    async def test() -> None:
        async with serving(echo) as web, calling("*:*", LOCAL) as caller:
            for round in range(3):  # those of earlier rounds are given up, their threads still wait
                exchanges = [caller.begin("http://hangs/")[0] for _ in range(16)]
                if not round:
                    for _ in range(4):
                        await asyncio.to_thread(hanging.acquire, timeout=HANG_SECONDS)
                await asyncio.sleep(0.01)
                for exchange in exchanges:
                    exchange.close()
                while len(caller.outbound):
                    await asyncio.sleep(0.001)
            assert not hanging.acquire(blocking=False), "more than four threads were taken"
            client = vars(caller.outbound)["_client"]
            assert await Caller(client.outbound(Tenant("u"), 16, MOST_BYTES, at_once)).text(web.url(host="good")) == "/"
            gate.set()

    check(test)


# ---- TLS ----


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Of 127.0.0.1, signed by itself."""
    folder = tmp_path_factory.mktemp("tls")
    key, cert = folder / "key.pem", folder / "cert.pem"
    options = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=test"
    names = ["-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(["openssl", *options.split(), *names, "-keyout", key, "-out", cert], check=True, capture_output=True)
    return key, cert


def https(handler: Any, certificate: tuple[Path, Path]) -> Any:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate[1], certificate[0])
    return serving(handler, context)


def test_a_certificate_that_nobody_trusts_is_refused(certificate: tuple[Path, Path]) -> None:
    async def test() -> None:
        async with https(echo, certificate) as web, calling() as caller:
            with pytest.raises(RequestFailed, match=r"no secure connection to 127\.0\.0\.1: .*certificate"):
                await caller.head(web.url(scheme="https"))
            assert web.asked == []

    check(test)


def test_one_of_a_trusted_authority_must_have_the_name(
    certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate[1]))
    monkeypatch.setattr(socket, "getaddrinfo", Names(other=["127.0.0.1"]))

    async def test() -> None:
        async with https(echo, certificate) as web, calling("other:*", LOCAL) as caller:
            assert await caller.text(web.url("/tls", scheme="https")) == "/tls"
            with pytest.raises(RequestFailed, match=r"no secure connection to other: .*not valid for 'other'"):
                await caller.head(web.url(scheme="https", host="other"))
            assert len(web.asked) == 1

    check(test)


def test_the_helper_sees_connections_end() -> None:
    """Or the tests above would see nothing."""

    async def test() -> None:
        async with serving(silent) as web:
            _, writer = await asyncio.open_connection("127.0.0.1", web.port)
            writer.write(b"GET / HTTP/1.1\r\n\r\n")
            await web.until_open(1)
            writer.close()
            await web.until_open(0)
        assert isinstance(web, Web)

    check(test)


def test_a_large_body_goes_in_slices_as_the_server_takes_it() -> None:
    body = bytearray(random.Random(1).randbytes(5 * SLICE_BYTES + 1))

    async def test() -> None:
        async with calling() as caller, serving(echo) as web:
            assert await caller.whole(await caller.head(web.url(), method="PUT", body=body)) == body
            assert web.asked[0].headers["content-length"] == str(len(body))
        slices = Slices(body)
        for _ in range(2):  # the second time on another connection
            sizes = [len(one) async for one in slices]
            assert sizes == [SLICE_BYTES] * 5 + [1]

    check(test)
