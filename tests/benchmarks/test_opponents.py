"""The opponents that Pie is compared with: a server without programs, its client, and a proxy that delays."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from benchmarks.opponents.client import CompletionClient, OpponentError
from benchmarks.opponents.closed.pages import PagePool
from benchmarks.opponents.delay import delayed
from benchmarks.report import BenchmarkError
from benchmarks.support.closed_loop import ClosedLoop, PacedLoop
from benchmarks.support.models.random_models import LLAMA_TINY, random_model
from benchmarks.support.samples import together
from benchmarks.support.server import CLOSED, serving
from pie_inference.config import WorkerConfig
from pie_inference.options.pace import Pace

PROMPTS = [[(7 * row + place) % 250 + 1 for place in range(60)] for row in range(3)]
COUNT = 12
GREEDY: dict[str, Any] = {"max_tokens": COUNT, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 5}, "old": {"type": "boolean"}},
    "required": ["name", "old"],
    "additionalProperties": False,
}


# ---- pages ----


def test_a_prompt_finds_the_full_pages_of_an_equal_one_but_its_last_token() -> None:
    pool = PagePool(4, page_size=2)
    first, second = pool.take(2)
    number = pool.cache(0, [1, 2], first)
    pool.cache(number, [3, 4], second)
    assert [page for _, page in pool.find([1, 2, 3, 4, 5])] == [first, second]
    assert [page for _, page in pool.find([1, 2, 3, 4])] == [first]
    assert pool.find([9, 2, 3, 4, 5]) == []


def test_pages_keep_their_content_until_it_is_needed_the_end_of_a_text_least() -> None:
    pool = PagePool(3, page_size=2)
    pages = pool.take(2)
    number = pool.cache(0, [1, 2], pages[0])
    pool.cache(number, [3, 4], pages[1])
    pool.give_back(pages)
    assert len(pool) == 3
    other = pool.take(2)  # the empty one first, then the end of the text
    assert pages[0] not in other
    assert [page for _, page in pool.find([1, 2, 3, 4, 5])] == [pages[0]]


def test_a_page_of_two_sequences_is_free_when_both_have_gone() -> None:
    pool = PagePool(1, page_size=2)
    pages = pool.take(1)
    pool.share(pages)
    pool.give_back(pages)
    assert len(pool) == 0
    pool.give_back(pages)
    assert len(pool) == 1


# ---- closed ----


@asynccontextmanager
async def closed() -> AsyncIterator[CompletionClient]:
    """A server whose prompts need several chunks."""
    settings: dict[str, Any] = {"model": random_model(LLAMA_TINY), "pages": 64, "max_batch_tokens": 32, "threads": 1}
    async with serving(CLOSED, **settings) as server, CompletionClient(server.url) as client:
        yield client


async def texts(client: CompletionClient, **asked: Any) -> list[str]:
    return [one["text"] for one in (await client.complete(**asked))["choices"]]


def form(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"schema": schema}}


async def _use(client: CompletionClient) -> None:
    loop = ClosedLoop(WorkerConfig(random_model(LLAMA_TINY), LLAMA_TINY, pages=64, threads=1))
    expected = loop.generate(PROMPTS, COUNT).tokens.tolist()
    together = await asyncio.gather(*(client.complete(prompt=prompt, **GREEDY) for prompt in PROMPTS))
    assert [one["choices"][0]["token_ids"] for one in together] == expected
    assert [one["usage"]["prompt_tokens_details"]["cached_tokens"] for one in together] == [0, 0, 0]
    again = await client.complete(prompt=PROMPTS[0], **GREEDY)
    assert again["choices"][0]["token_ids"] == expected[0]
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == 48
    streamed = [one["choices"][0] async for one in client.stream(prompt=PROMPTS[1], **GREEDY)]
    assert [token for one in streamed for token in one["token_ids"]] == expected[1]
    assert [one["finish_reason"] for one in streamed] == [None] * (COUNT - 1) + ["length"]
    whole = together[1]["choices"][0]["text"]
    assert "".join(one["text"] for one in streamed) == whole

    stop = whole[len(whole) // 2]
    stopped = await texts(client, prompt=PROMPTS[1], stop=stop, **GREEDY)
    assert stopped == [whole[: whole.index(stop)]]
    several = await texts(client, prompt=PROMPTS[0], n=3, seed=1, max_tokens=8, ignore_eos=True)
    assert len(set(several)) == 3
    assert several == await texts(client, prompt=PROMPTS[0], n=3, seed=1, max_tokens=8, ignore_eos=True)
    answers = await texts(client, prompt="Who? ", n=3, seed=2, max_tokens=200, response_format=form(SCHEMA))
    assert all(set(json.loads(answer)) == {"name", "old"} for answer in answers)

    for wrong, message in (
        ({"prompt": "x", "n": 0}, "n"),
        ({"prompt": "x", "logprobs": 1}, "has no logprobs"),
        ({"prompt": []}, "the prompt is empty"),
        ({"prompt": "x", "max_tokens": 10_000}, "more than"),
        ({"prompt": "x", "model": "other"}, "there is no model 'other'"),
        (
            {"prompt": "x", "response_format": form({"type": 3})},
            "400: .*type must be",
        ),
    ):
        with pytest.raises(OpponentError, match=message):
            await client.complete(**wrong)
    assert await texts(client, prompt=PROMPTS[1], **GREEDY) == [whole]


def test_closed_gives_what_its_worker_gives_in_each_of_its_forms() -> None:
    async def use() -> None:
        async with closed() as client:
            await _use(client)

    asyncio.run(use())


def test_the_closed_loop_of_a_pace_takes_what_it_says() -> None:
    made = PacedLoop("paced", Pace(5.0, 0.25)).generate(PROMPTS, COUNT)
    assert (made.tokens.shape, made.seconds_per_token) == ((len(PROMPTS), COUNT), 5.75)


def test_a_token_takes_what_it_takes_while_all_streams_run() -> None:
    begins_first, begins_last = [0.0, 9.0, 10.0, 11.0, 12.0], [9.5, 10.5, 11.5, 12.5, 20.0]
    assert together([begins_first, begins_last]) == 1.0


# ---- the client, and the proxy ----


def http(body: bytes, status: str = "200 OK") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def in_chunks(*chunks: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"\r\n".join(chunks) + b"\r\n0\r\n\r\n"


def event(text: bytes) -> bytes:
    """A stream with one event."""
    data = b"data: " + text + b"\n\n"
    return in_chunks(b"%x" % len(data), data)


async def asked(answer: bytes, ask: Callable[[CompletionClient], Awaitable[object]], hangs_up: bool = True) -> object:
    """What a client makes of a server that answers so."""
    talks: list[asyncio.Task[None] | None] = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        talks.append(asyncio.current_task())
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        if not hangs_up:
            await reader.read()  # until the client does
        writer.close()

    async with await asyncio.start_server(talk, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            async with CompletionClient(url) as client:
                return await ask(client)
        finally:
            await asyncio.gather(*filter(None, talks))


@pytest.mark.parametrize(
    "answer",
    [
        *(http(b"no", "404 Not Found"), b"220 mail\r\n\r\n", b"", http(b"no", "abc"), http(b"", "200 OK")),
        *(http(b"[]"), http(b"[" * 100_000), http(b'{"data": [{"id": "\xff"}]}'), http(b'{"data": [{"id": 1}]}')),
        *(in_chunks(b"zz", b"{}"), in_chunks(b"-6", b"{}")),
    ],
    ids=range(11),
)
def test_an_address_of_no_such_server_is_told(answer: bytes) -> None:
    with pytest.raises(OpponentError, match=r"is no server of completions .* give the address of vLLM"):
        asyncio.run(asked(answer, lambda client: client.model()))


WRONG = [b"{}", b'{"choices": 1}', b'{"choices": [1]}', b'{"choices": [{"text": null}]}']


@pytest.mark.parametrize("body", [b"", b"[]", b'{"choices": []}', b'{"error": "no"}', *WRONG])
def test_an_answer_that_is_no_completion_is_told(body: bytes) -> None:
    with pytest.raises(OpponentError, match=r"no JSON object|no completion|says: no|0 choices for n=1: measure"):
        asyncio.run(asked(http(body), lambda client: client.complete()))


@pytest.mark.parametrize("text", [b"{", *WRONG])
def test_an_event_that_is_no_part_of_a_completion_is_told(text: bytes) -> None:
    with pytest.raises(OpponentError, match=r"no JSON object|no completion"):
        asyncio.run(asked(event(text), follow))


async def follow(client: CompletionClient, **request: Any) -> list[dict[str, Any]]:
    return [one async for one in client.stream(**request)]


@pytest.mark.parametrize("ask", [CompletionClient.complete, follow], ids=["whole", "streamed"])
def test_a_server_that_makes_fewer_tokens_than_it_is_asked_for_is_told(ask: Callable[..., Awaitable[object]]) -> None:
    def asks(end: str, **more: Any) -> object:
        body = json.dumps({"choices": [{"text": "x", "finish_reason": end}]}).encode()
        answer = http(body) if ask is CompletionClient.complete else event(body)
        return asyncio.run(asked(answer, lambda client: ask(client, max_tokens=5, ignore_eos=True, **more)))

    assert asks("length")
    assert asks("stop", stop="x")
    with pytest.raises(OpponentError, match=r"ended a text before its 5 tokens \(stop\), .* take one that heeds it"):
        asks("stop")


@pytest.mark.parametrize("answer", [b"", http(b"{}")[:-1]], ids=["nothing", "a part"])
def test_a_server_that_says_nothing_more_is_given_up(answer: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.serving.client.SILENCE_SECONDS", 0.05)
    with pytest.raises(OpponentError, match=r"has said nothing for 0\.05 s: does it hang"):
        asyncio.run(asked(answer, lambda client: client.complete(), hangs_up=False))


@pytest.mark.parametrize("url", ["ftp://somewhere", "http://", "http://[::1", "http://127.0.0.1:99999", "http://a:b"])
def test_an_address_that_is_none_is_told(url: str) -> None:
    with pytest.raises(OpponentError, match="give one like"):
        CompletionClient(url)


def test_the_way_to_a_server_of_https_is_not_made_longer() -> None:
    async def through() -> None:
        async with delayed("https://127.0.0.1:1", 1):
            pass

    with pytest.raises(BenchmarkError, match="cannot be made longer, as https is: take http"):
        asyncio.run(through())


def test_a_connection_that_the_server_has_closed_meanwhile_is_left_alone() -> None:
    connections = 0

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi")
        writer.close()

    async def ask() -> list[bytes]:
        async with await asyncio.start_server(talk, "127.0.0.1", 0) as server:
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            async with CompletionClient(url) as client:
                found = [(await client.get("/")).body()]
                await asyncio.sleep(0.1)  # until the client knows of it
                return [*found, (await client.get("/")).body()]

    assert asyncio.run(ask()) == [b"hi", b"hi"]
    assert connections == 2


def test_the_proxy_delays_and_changes_nothing() -> None:
    sent = [bytes([number]) * 1000 for number in range(50)]

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.read())
        writer.close()

    async def through() -> tuple[bytes, float]:
        server = await asyncio.start_server(echo, "127.0.0.1", 0)
        async with server, delayed(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1", 20) as url:
            reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2].removesuffix("/v1")))
            start = time.perf_counter()
            for piece in sent:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0)
            writer.write_eof()
            got = await reader.read()
            writer.close()
            return got, time.perf_counter() - start

    got, seconds = asyncio.run(through())
    assert got == b"".join(sent)
    assert seconds >= 0.04  # a handshake, and there and back
