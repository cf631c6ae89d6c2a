"""Who may speak to the server: names, origins, sizes."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any

import httpx
import pytest
import websockets
from hypothesis import given
from hypothesis import strategies as st
from starlette.datastructures import Headers

from pie_control import host_memory
from pie_control.http_server.guard import AllowedHosts, is_address, json_limit, name_of
from tests.helpers.fake_server_api import FakeServerApi, serve_async
from tests.helpers.sessions import open_session


def objection(host: str, origin: str | None = None, listens_on: str = "127.0.0.1", allowed: str = "") -> int:
    headers = {"host": host} | ({"origin": origin} if origin is not None else {})
    found = AllowedHosts(listens_on, allowed.split(",")).objection(Headers(headers))
    return found[0] if found else 0


@pytest.mark.parametrize(
    ("host", "options", "status"),
    [
        ("127.0.0.1:8011", {}, 0),
        ("localhost:8011", {}, 0),
        ("LocalHost.", {}, 0),
        ("[::1]:8011", {}, 0),
        ("[fe80::1%25eth0]:8011", {}, 0),
        ("192.168.1.5:8011", {"listens_on": "0.0.0.0"}, 0),
        ("gpu.lan:8011", {"listens_on": "gpu.lan"}, 0),
        ("gpu.lan:8011", {"listens_on": "0.0.0.0", "allowed": "GPU.lan,other"}, 0),
        ("gpu.lan:8011", {"listens_on": "0.0.0.0"}, 421),
        ("evil.example:8011", {}, 421),
        ("127.0.0.1.evil.example", {}, 421),
        ("localhost.evil.example", {}, 421),
        ("evil.example#@127.0.0.1", {}, 421),
        ("evil.example@127.0.0.1", {}, 421),
        ("127.0.0.1:80:evil.example", {}, 421),
        ("127.0.0.1 evil.example", {}, 421),
        ("", {}, 421),
        ("[::1", {}, 421),
    ],
)
def test_names_of_the_server(host: str, options: dict[str, str], status: int) -> None:
    assert objection(host, **options) == status


@pytest.mark.parametrize(
    ("origin", "host", "options", "status"),
    [
        ("http://127.0.0.1:8011", "127.0.0.1:8011", {}, 0),
        ("http://LOCALHOST:8011", "localhost:8011", {}, 0),
        ("http://localhost:3000", "localhost:8011", {}, 403),
        ("http://evil.example", "127.0.0.1:8011", {}, 403),
        ("http://evil.example:8011", "evil.example:8011", {}, 421),
        ("null", "127.0.0.1:8011", {}, 403),
        ("", "127.0.0.1:8011", {}, 403),
        ("http://[", "127.0.0.1:8011", {}, 403),
        ("https://chat.example", "127.0.0.1:8011", {"allowed": "chat.example"}, 0),
        ("https://chat.example.evil.example", "127.0.0.1:8011", {"allowed": "chat.example"}, 403),
        ("https://localhost:3000", "chat.example", {"allowed": "chat.example"}, 403),
    ],
)
def test_origins_of_pages(origin: str, host: str, options: dict[str, str], status: int) -> None:
    assert objection(host, origin, **options) == status


LATIN = st.text(st.characters(max_codepoint=255), max_size=40)


@given(LATIN, LATIN)
def test_no_header_is_too_odd(host: str, origin: str) -> None:
    name = name_of(host)
    found = AllowedHosts("127.0.0.1", ()).objection(Headers({"host": host, "origin": origin}))  # raises nothing
    if name != "localhost" and not is_address(name):
        assert found is not None
        assert found[0] == 421


@pytest.mark.parametrize(
    ("host", "origin", "status", "text"),
    [
        ("evil.example", "http://evil.example", 421, "--allowed-hosts evil.example"),
        ("localhost", "http://evil.example", 403, "--allowed-hosts"),
    ],
)
def test_a_rebound_name_runs_nothing(host: str, origin: str, status: int, text: str) -> None:
    async def test(url: str, runtime: FakeServerApi) -> None:
        port = url.rsplit(":")[-1]
        headers = {"host": f"{host}:{port}", "origin": f"{origin}:{port}"}
        async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
            answer = await client.post("/v1/programs?name=x", content=b"x = 1", headers=headers)
            assert answer.status_code == status
            assert answer.json()["error"]["code"] == "forbidden"
            assert text in answer.json()["error"]["message"]
            assert runtime.uploads == 0
        with pytest.raises(websockets.InvalidStatus, match=str(status)):
            await open_session(f"http://{host}:{port}", host="127.0.0.1", origin=headers["origin"])

    serve_async(test)


def body_of(size: int) -> bytes:
    frame = b'{"program": "hello", "arguments": ["%s"]}'
    return frame % (b"x" * (size - len(frame) + 2))


@pytest.mark.parametrize(("beyond", "status"), [(0, 201), (1, 413)])
def test_json_is_bounded_by_what_arguments_may_be_and_programs_are_not(beyond: int, status: int) -> None:
    limit = json_limit(100_000)

    async def test(url: str, runtime: FakeServerApi) -> None:
        async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
            answer = await client.post(
                "/v1/inferlets", content=body_of(limit + beyond), headers={"content-type": "application/json"}
            )
            assert answer.status_code == status, answer.text
            assert (await client.post("/v1/programs", content=b"#" * 2 * limit)).status_code == 200
            assert (await client.post("/v1/blobs", content=bytes(2 * limit))).status_code == 200
            refused = await client.post("/v1/blobs", content=bytes((1 << 20) + 1))
            assert (refused.status_code, "--max-blob-bytes" in refused.text) == (413, True)

    serve_async(test, max_message_bytes=100_000, max_blob_bytes=1 << 20)


def test_bodies_of_all_requests_together_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_memory, "machine_memory", lambda: 4 << 20)  # a fourth for all, half of it for a tenant
    half, more = bytes(300 << 10), bytes(400 << 10)

    async def test(url: str, _: FakeServerApi) -> None:
        async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
            reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rsplit(":")[-1]))
            writer.write(b"POST /v1/blobs HTTP/1.1\r\nhost: localhost\r\ncontent-length: 400000\r\n\r\n" + half)
            while (refused := await client.post("/v1/blobs", content=more)).status_code == 200:
                await asyncio.sleep(0.01)  # until the slow one has come so far
            assert (refused.status_code, refused.json()["error"]["code"]) == (429, "too-many-requests")
            assert "a tenant may have 0 MiB of bodies of requests at a time: try again" in refused.text
            assert (await client.post("/v1/chat/completions", content=more)).status_code == 429
            assert (await client.post("/v1/blobs", content=b"small")).status_code == 200
            writer.close()
            while (await client.post("/v1/blobs", content=more)).status_code != 200:
                await asyncio.sleep(0.01)  # until it is noticed that the slow one has left
            assert await reader.read() == b""

    serve_async(test)


def test_answers_that_clients_do_not_read_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_memory, "machine_memory", lambda: 160 << 20)  # an eighth for all, half of it for a tenant
    told = "x" * (8 << 20)  # more than the sockets hold

    async def test(url: str, _: FakeServerApi) -> None:
        async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
            body = {"program": "kwargs", "environment": {"kwargs": json.dumps({"text": told})}}
            await client.post("/v1/programs?name=kwargs", content=b"")
            path = f"/v1/inferlets/{(await client.post('/v1/inferlets', json=body)).json()['id']}"
            while (whole := (await client.get(path)).json())["ended"] is None:
                await asyncio.sleep(0.01)
            slow = socket.socket()
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            slow.connect(("127.0.0.1", int(url.rsplit(":")[-1])))
            reader, writer = await asyncio.open_connection(sock=slow, limit=1024)
            writer.write(f"GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
            await reader.readuntil(b"\r\n\r\n")
            refused = await client.get(path)
            assert (refused.status_code, refused.json()["error"]["code"]) == (429, "too-many-requests")
            assert "a tenant may have 10 MiB of answers that wait for clients to read them" in refused.text
            assert (await client.get("/v1/programs")).status_code == 200
            writer.close()
            while (answer := await client.get(path)).status_code != 200:
                await asyncio.sleep(0.01)  # until it is noticed that the other one has left
            assert answer.json() == whole
            assert told in whole["result"]

    serve_async(test, max_message_bytes=9 << 20)


@pytest.mark.parametrize("text", ["世", "ü", "🎉", "\n", '"'])
def test_a_message_of_the_largest_size_fits_however_its_letters_are_escaped(text: str) -> None:
    message = text * (100_000 // len(text.encode()))
    body: dict[str, Any] = {"text": message}
    assert len(json.dumps(body)) <= json_limit(100_000)
