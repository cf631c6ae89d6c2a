"""What programs say to the server, and readers of an answer that is made."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pie_control import host_memory
from pie_control.durable.responses import AtOnce, ResponseRecord
from pie_control.errors import Overloaded, TooManyRequests
from pie_control.gateway.gateway import Gateway
from pie_control.gateway.refusal import Refused
from pie_control.gateway.request import ServedRequest
from pie_control.gateway.stored import running
from pie_control.gateway.stored.marks import Fetch, Store, read_mark, with_end
from pie_control.gateway.stored.running import Running
from pie_control.gateway.stored.store import MOST_MEMBERS, StoredAnswers
from pie_control.host_memory import TenantBytes
from pie_control.tenants.tenant import Standing, Tenant
from tests.helpers.guard import HANG_SECONDS

MADE = ResponseRecord("alice", "r1", "i1", "/v1/responses", "1", 1.0, None, False, True, "", b"", "[]", "{}", ())


def test_marks_are_read_and_the_words_of_a_model_are_not() -> None:
    fetch = read_mark('{"served_fetch": {"id": "r1"}}')
    assert fetch == Fetch("r1")
    for unknown in ("", "z" * 100_000):  # whoever asks for it waits for an answer
        assert read_mark(f'{{"served_fetch": {{"id": "{unknown}"}}}}') == Fetch(unknown)
    store = read_mark('{"served_store": {"id": "r1", "body": {"status": "in_progress"}, "input": ["x"]}}')
    assert isinstance(store, Store)
    assert (bytes(store.body), bytes(store.input)) == (b'{"status": "in_progress"}', b'["x"]')
    for words in ('{"served_store"', '{"served_fetch": {}}', ' {"served_fetch": {"id": "r1"}}', '{"served_error": {}}'):
        assert read_mark(words) is None
    for wrong in ('"body": 7', '"body": {}, "input": {}'):
        assert read_mark(f'{{"served_store": {{"id": "r1", {wrong}}}}}') is None


@pytest.mark.parametrize("number", ["1e999", "1" * 5000])
def test_a_body_ends_with_numbers_that_nobody_can_read(number: str) -> None:
    store = read_mark(f'{{"served_store": {{"id": "r1", "body": {{"a": {number}, "status": "in_progress"}}}}}}')
    assert isinstance(store, Store)
    expected = f'{{"a":{number},"status":"failed","error":{{"code":"c"}}}}'
    assert with_end(bytes(store.body).decode(), "failed", {"code": "c"}) == expected


def test_readers_follow_from_where_they_want() -> None:
    async def test() -> None:
        made = Running(MADE)
        waiting = [asyncio.create_task(made.after(number)) for number in (0, 1)]
        for event in ("a", "b"):
            await asyncio.sleep(0)
            made.add(event)
        assert await waiting[0] in (["a"], ["a", "b"])
        assert await waiting[1] == ["b"]
        last = asyncio.create_task(made.after(2))
        kept = made.ended("{}", 2.0)
        made.finish(kept)
        assert (await last, kept.events, kept.streamed) == ([], ("a", "b"), True)
        assert await Running.over(kept).after(1) == ["b"]

    asyncio.run(asyncio.wait_for(test(), HANG_SECONDS))


def test_a_response_that_is_about_to_begin_again_has_its_id() -> None:
    """A client that asks again with the same one would be told of a failure, however its answer ended."""

    async def test() -> None:
        responses = AtOnce.responses(1.0, 1 << 20)
        responses.put(MADE, lambda: None)
        stored, mark = StoredAnswers(responses), read_mark('{"served_store": {"id": "r1", "body": {}}}')
        assert isinstance(mark, Store)
        begin = partial(stored.begin, mark, "i1", Standing(Tenant("alice")), ServedRequest("", "r1", b"", "", False))
        has_room = asyncio.Event()

        async def again() -> None:
            await has_room.wait()
            await begin()

        stored.make_again(MADE, again())
        with pytest.raises(Refused, match="'r1' already"):
            await begin()
        has_room.set()
        while stored.find("alice", "r1").is_over:
            await asyncio.sleep(0)

    asyncio.run(asyncio.wait_for(test(), HANG_SECONDS))


def test_a_tenant_reads_one_large_answer_at_a_time_and_others_do_not_wait() -> None:
    bob_reads, at_once, most = threading.Event(), 0, 0

    def alice() -> bool:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        found = bob_reads.wait(HANG_SECONDS)
        at_once -= 1
        return found

    async def test() -> None:
        stored = StoredAnswers(AtOnce.responses(1.0, 1 << 20))
        reads = [asyncio.create_task(stored.read("alice", alice)) for _ in range(4)]
        await asyncio.sleep(0)
        await stored.read("bob", bob_reads.set)
        assert (await asyncio.gather(*reads), most) == ([True] * 4, 1)

    asyncio.run(asyncio.wait_for(test(), HANG_SECONDS))


@pytest.mark.parametrize(("most", "status"), [(4096, 429), (64, 400)])
def test_a_conversation_that_an_inferlet_cannot_have_now_is_not_too_long(most: int, status: int) -> None:
    def send(text: str, blobs: object) -> None:
        raise TooManyRequests("a tenant may have 1 MiB of messages")

    responses = AtOnce.responses(1.0, 1 << 20)
    responses.put(replace(MADE, ended=time.time(), input='["' + "x" * 100 + '"]'), lambda: None)
    gateway = Gateway(cast(Any, SimpleNamespace(responses=responses, is_stopping=False)), cast(Any, 0), cast(Any, 0))
    limits = SimpleNamespace(max_blob_bytes=most)
    api: Any = SimpleNamespace(standing=Standing(Tenant("alice")), config=SimpleNamespace(limits=limits))
    inferlet: Any = SimpleNamespace(send=send)
    with pytest.raises((TooManyRequests, Refused)) as refusal:
        asyncio.run(gateway.tell_earlier("r1", inferlet, api))
    assert refusal.value.status == status, "a client of the first tries again"


def test_events_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "MOST_EVENT_BYTES", 3 + 2 * running.EVENT_BYTES)
    monkeypatch.setattr(running, "SLACK", 1000)

    async def test() -> None:
        made = Running(MADE)
        for event in ("aa", "bb", "c"):
            made.add(event)
        assert (await made.after(1), made.count) == (["bb", "c"], 3)
        with pytest.raises(Refused, match="before 1 are not kept"):
            await made.after(0)
        kept = made.ended("{}", 2.0)
        assert (kept.events, kept.streamed) == ((), False)

    asyncio.run(asyncio.wait_for(test(), HANG_SECONDS))


def test_all_answers_together_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    room = 2 * MADE.size + 4 * (4096 + running.EVENT_BYTES)
    monkeypatch.setattr(host_memory, "machine_memory", lambda: 4 * room)
    memory = TenantBytes(2, "of answers")  # a tenant has room for two with four events

    async def test() -> None:
        first, second = Running(MADE, memory), Running(MADE, memory)
        for made in (first, second):
            for number in range(3):
                made.add(f"{number}" * 4096)
        assert len(await first.after(0)) == 3
        assert (await second.after(2), second.count) == (["2" * 4096], 3)
        with pytest.raises(Refused, match="before 2 are not kept"):
            await second.after(0)
        with pytest.raises(Overloaded, match="of answers"):
            Running(replace(MADE, input="x" * 4096), memory)
        for made in (first, second):
            made.finish(made.ended("{}", 2.0))
        memory.hold("alice", room)  # all of it is free again

    asyncio.run(asyncio.wait_for(test(), HANG_SECONDS))


def test_a_reader_gets_many_events_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "PIECE_CHARACTERS", 3 * (1 + running.EVENT_BYTES))

    async def test() -> None:
        made = Running(MADE)
        for event in "abcdefg":
            made.add(event)
        made.finish(MADE)
        assert [await made.after(number) for number in (0, 3, 6, 7)] == [["a", "b", "c"], ["d", "e", "f"], ["g"], []]

    asyncio.run(asyncio.wait_for(test(), HANG_SECONDS))


@pytest.mark.parametrize(
    ("body", "items", "is_stored"),
    [
        ("{}", "[]", True),
        ('{"a": [' + "1," * 20_000 + "1]}", '["' + "," * 20_000 + '"]', True),
        ("{}", "[" + "{}," * (MOST_MEMBERS - 1) + "{}]", True),
        ("{}", "[" + "{}," * MOST_MEMBERS + "{}]", False),
        ("{" + ",".join(f'"{key}": 1' for key in range(MOST_MEMBERS + 1)) + "}", "[]", False),
    ],
)
def test_what_is_stored_has_no_more_members_than_can_be_read(body: str, items: str, is_stored: bool) -> None:
    async def test() -> None:
        stored = StoredAnswers(AtOnce.responses(1.0, 1 << 30))
        mark = read_mark(f'{{"served_store": {{"id": "r1", "body": {body}, "input": {items}}}}}')
        assert isinstance(mark, Store)
        begins = stored.begin(
            mark, "i1", Standing(Tenant("alice"), key="key_1"), ServedRequest("/v1/responses", "r1", b"{}", "", False)
        )
        if is_stored:
            record = (await begins).record
            assert (record.input, record.tenant, record.key) == (items, "alice", "key_1")
        else:
            with pytest.raises(Refused, match="more than 10000"):
                await begins

    asyncio.run(asyncio.wait_for(test(), HANG_SECONDS))
