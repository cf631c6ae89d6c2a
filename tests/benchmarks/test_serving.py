"""The benchmark of the served routes: its client, its loads, its verdicts, and that each scenario runs."""

from __future__ import annotations

import asyncio
import contextlib
import json
import types
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from websockets.exceptions import ConnectionClosedError

from benchmarks.opponents.client import OpponentError
from benchmarks.serving.client import HttpClient
from benchmarks.serving.load import Timed, poisson, timed
from benchmarks.serving.plan import NAMES, TINY
from benchmarks.serving.rows import over, row
from benchmarks.serving.scenarios import json_mode, opponents
from benchmarks.serving.servers import CannotServeError, Server
from benchmarks.serving.session import Session
from pie_control.client import ServerUnavailable

from .running import run

EVENTS = [{"choices": [{"delta": {"content": text}}]} for text in ("", "one", " two")]
USAGE = {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 3, "prompt_tokens_details": None}}


def chunked(*data: bytes) -> bytes:
    body = b"".join(b"%x\r\n%b\r\n" % (len(one), one) for one in (*data, b""))
    return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + body


def streamed() -> bytes:
    """The second event lies across two chunks, as proxies may do it."""
    first, second, *rest = (b"data: " + json.dumps(event).encode() + b"\n\n" for event in (*EVENTS, USAGE))
    return chunked(first, second[:11], second[11:], *rest, b"data: [DONE]\n\n")


def whole(status: bytes, body: bytes) -> bytes:
    return b"HTTP/1.1 %b\r\ncontent-length: %d\r\n\r\n%b" % (status, len(body), body)


WHOLE = whole(b"200 OK", b'{"choices": [{"text": "one"}]}')
REFUSED = whole(b"503 Service Unavailable", b"busy")


@asynccontextmanager
async def answering(*answers: Sequence[bytes]) -> AsyncIterator[HttpClient]:
    """A client of a server that sends these parts, one after the other; it hangs up behind an answer of no parts."""
    left, talks = iter(answers), []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        talks.append(asyncio.current_task())
        with contextlib.suppress(ConnectionError):
            while await reader.read(1 << 16) and (parts := next(left)):
                for part in parts:
                    writer.write(part)
                    await writer.drain()
                    await asyncio.sleep(0)
        writer.close()

    async with await asyncio.start_server(talk, "127.0.0.1", 0) as server:
        async with HttpClient(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}") as client:
            yield client
        await asyncio.gather(*filter(None, talks))


def ask(*answers: Sequence[bytes], count: int = 1) -> list[Timed]:
    async def asked() -> list[Timed]:
        async with answering(*answers) as client:
            request = client.request("/v1/chat/completions", {})
            return [timed(await client.send(request)) for _ in range(count)]

    return asyncio.run(asked())


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_a_streamed_answer_is_read_however_it_is_cut(size: int) -> None:
    text = streamed()
    (answer,) = ask([text[begin : begin + size] for begin in range(0, len(text), size)])
    assert (answer.status, answer.text, answer.tokens, answer.cached) == (200, "one two", 3, 0)
    assert 0 < answer.ttft <= answer.ms
    assert len(answer.times) == 2


def test_answers_of_all_kinds_follow_each_other_on_one_connection() -> None:
    answers = ask([streamed()], [WHOLE], [REFUSED], [streamed()], count=4)
    assert [one.status for one in answers] == [200, 200, 503, 200]
    assert answers[2].text == "busy"


def test_a_kept_connection_that_the_server_closes_is_replaced() -> None:
    assert [one.status for one in ask([WHOLE], [], [WHOLE], count=2)] == [200, 200]


def test_a_server_that_always_hangs_up_is_told() -> None:
    with pytest.raises(OpponentError, match="hung up"):
        ask([], [], [], [])


def test_random_requests_come_at_the_rate_that_is_asked_for() -> None:
    async def load() -> int:
        async with answering(*([[WHOLE]] * 200)) as client:
            loaded = await poisson(client, lambda _: client.request("/", {}), rate=200, seconds=0.25)
            return len(loaded.served)

    assert 25 <= asyncio.run(load()) <= 80


class LostSocket:
    """Takes one message, and then the connection breaks."""

    def __init__(self) -> None:
        self._taken = asyncio.Event()

    async def send(self, _: str) -> None:
        if self._taken.is_set():
            raise ConnectionClosedError(None, None)
        self._taken.set()

    async def __aiter__(self) -> AsyncIterator[str]:
        await self._taken.wait()
        raise ConnectionClosedError(None, None)
        yield ""


def test_a_launch_fails_if_the_server_is_lost() -> None:
    async def check() -> None:
        socket: Any = LostSocket()
        own = Session(socket, HttpClient("127.0.0.1"))
        reads = asyncio.create_task(own.read())
        for _ in ("while it waits", "afterwards"):
            with pytest.raises(ServerUnavailable, match="the connection to the server broke"):
                await own.launch("0" * 64)
        await reads

    asyncio.run(check())


@pytest.mark.parametrize(
    ("value", "bound", "verdict"),
    [(1.02, "<= 1.02", "met"), (1.03, "<= 1.02", "missed"), (300, ">= 300", "met"), (None, ">= 1", "not measured")],
)
def test_a_bound_has_a_verdict(value: float | None, bound: str, verdict: str) -> None:
    assert row("scenario", "measure", value, bound=bound).verdict == verdict


def test_a_ratio_to_nothing_is_not_measured() -> None:
    assert over(1.0, 4.0) == 0.25
    assert row("scenario", "measure", over(1.0, 0.0), bound=">= 1").verdict == "not measured"


def test_a_measure_without_a_bound_has_none() -> None:
    assert row("scenario", "measure", 1.0).verdict == ""


@pytest.mark.parametrize(
    "wrong", [{"age": 121}, {"age": "3"}, {"likes": []}, {"likes": ["cats"]}, {"name": "x" * 25}, {"job": "baker"}]
)
def test_an_answer_that_breaks_the_schema_anywhere_is_not_valid(wrong: dict[str, Any]) -> None:
    person = {"name": "Tom", "age": 3, "likes": ["dogs"]}
    assert json_mode._is_person(json.dumps(person))
    assert not json_mode._is_person(json.dumps(person | wrong))
    assert not json_mode._is_person(json.dumps([person]))


@pytest.mark.parametrize(
    ("asked", "has_gpu", "used"), [("auto", True, "cuda"), ("auto", False, "cpu"), ("cpu", True, "cpu")]
)
def test_opponents_compute_on_the_same_device_as_pie(
    asked: Any, has_gpu: bool, used: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    devices = []

    @asynccontextmanager
    async def serving(*_: object, device: str = "", **__: object) -> AsyncIterator[types.SimpleNamespace]:
        devices.append(device)
        yield types.SimpleNamespace(url="127.0.0.1")

    @asynccontextmanager
    async def peer(_: str, device: str, *__: int) -> AsyncIterator[Server]:
        devices.append(device)
        raise CannotServeError("it is not here")
        yield Server("")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    monkeypatch.setattr(opponents, "serving", serving)
    monkeypatch.setattr(opponents, "PEERS", {"closed": peer})
    [row] = asyncio.run(opponents.measure(replace(TINY, peers=("closed",), device=asked)))
    assert (devices, row.note) == ([used, used], "it is not here")


@pytest.mark.parametrize("name", NAMES)
def test_each_scenario_runs(name: str, tmp_path: Path) -> None:
    rows = run(tmp_path, "serve", "--tiny", "--scenarios", name)
    assert {one["scenario"] for one in rows} == {name}
    assert len({(one["measure"], one["at"]) for one in rows}) == len(rows)
