"""Stored answers in the state: how long, how much, whose; and what a restart finds."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import Raw

from pie_control.durable import responses as module
from pie_control.durable.commits import Write
from pie_control.durable.database import database_in_memory
from pie_control.durable.responses import DAY, AtOnce, ResponseRecord, Responses
from pie_control.durable.state import State
from pie_control.gateway.refusal import Refused
from pie_control.gateway.request import ServedRequest
from pie_control.gateway.stored import store
from pie_control.gateway.stored.marks import Store
from pie_control.gateway.stored.store import StoredAnswers
from pie_control.tenants.tenant import Standing, Tenant
from tests.helpers.guard import HANG_SECONDS

ONE = ResponseRecord(
    *("alice", "resp_1", "i1", "/v1/responses", "1", 1000.0, time.time(), False, True, "resp_0", b""),
    *('[{"a": 1}]', '{"status": "completed"}', ("first", "second")),
)


@pytest.fixture
def responses() -> Responses:
    return AtOnce.responses(1.0, 2000)


def put(responses: Responses, *records: ResponseRecord) -> None:
    for record in records:
        responses.put(record, lambda: None)


def turn(number: int, before: int, ended: float, size: int = 0) -> ResponseRecord:
    """A response of alice's; `before`: the number of the one that it goes on from, 0: none."""
    previous = f"resp_{before}" if before else ""
    return replace(
        ONE, id=f"resp_{number}", previous=previous, ended=ended, input=f"[{number}]", body='"%s"' % ("x" * size)
    )


def kept(responses: Responses, *numbers: int) -> list[int]:
    """Those of these responses of alice's that are there."""
    return [number for number in numbers if responses.find("alice", f"resp_{number}")]


def test_what_is_kept_while_nothing_can_be_written_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_RECENT_BYTES", 5000)

    class Stuck(AtOnce):
        trouble = "the disk is full"

        def put(self, *writes: Write, then: Callable[[], None]) -> None:
            then()

    with contextlib.closing(database_in_memory()) as database:
        responses = Responses(Stuck(database), database, 1.0, 1 << 20)
        put(responses, *(turn(number, 0, time.time(), 1000) for number in (1, 2, 3, 3, 3, 3, 4, 5)))
        assert kept(responses, *range(1, 6)) == [3, 4, 5]


def test_they_belong_to_a_tenant(responses: Responses) -> None:
    put(responses, ONE)
    assert responses.find("alice", "resp_1") == ONE
    assert responses.find("bob", "resp_1") is None
    responses.delete(ONE, lambda: None)
    assert responses.find("alice", "resp_1") is None


def test_the_oldest_go_beyond_the_bytes_of_a_tenant_and_after_days(responses: Responses) -> None:
    others = [turn(n, 0, time.time() + n, 500) for n in range(4)]
    put(responses, replace(ONE, tenant="bob"), *others, replace(ONE, id="running", ended=None))
    assert kept(responses, *range(4)) == [2, 3]
    assert responses.find("bob", "resp_1") is not None
    old = replace(ONE, tenant="carl", ended=time.time() - 2 * 86400)
    put(responses, old)
    assert responses.find("carl", "resp_1") is None
    assert [one.id for one in responses.unfinished()] == ["running"]


def test_sizes_are_not_added_up_for_each_response_and_the_bound_holds() -> None:
    database = database_in_memory()
    asked: list[str] = []

    class Counting(AtOnce):
        def put(self, *writes: Write, then: Callable[[], None]) -> None:
            asked.extend(statement for statement, _ in writes)
            super().put(*writes, then=then)

    responses = Responses(Counting(database), database, 1.0, 64 << 10)
    size = "SELECT coalesce(sum(size), 0) FROM responses"
    for number in range(400):
        put(responses, replace(ONE, id=f"resp_{number}", previous="", ended=time.time() + number))
        assert database.execute(size).fetchone()[0] <= 64 << 10
    assert database.execute(size).fetchone()[0] >= 60 << 10
    assert 400 // 4 < sum("OVER" in one for one in asked) <= 400 // 2
    assert responses.find("alice", "resp_399") is not None


def test_a_restart_finds_what_was_stored_and_what_was_made(tmp_path: Path) -> None:
    async def first(state: State) -> None:
        for record in (ONE, replace(ONE, id="made", ended=None)):
            done = asyncio.Event()
            state.responses.put(record, done.set)
            await asyncio.wait_for(done.wait(), HANG_SECONDS)

    async def second(state: State) -> None:
        answers = StoredAnswers(state.responses)
        (made,) = answers.unfinished()
        await asyncio.wait_for(answers.fail(made, "it was lost"), HANG_SECONDS)
        assert answers.find("alice", "resp_1").record == ONE
        assert '"status":"failed"' in answers.find("alice", "made").record.body

    for body in (first, second):
        state = State(tmp_path / "state", 30.0, 1 << 30)
        asyncio.run(body(state))
        state.close()


def test_tries_of_what_begins_again_are_counted_until_a_server_ends_by_itself(tmp_path: Path) -> None:
    background = replace(ONE, id="background", background=True, ended=None)

    async def count(state: State) -> None:
        await StoredAnswers(state.responses)._put(background)
        for tries in (1, 2):
            answers = StoredAnswers(state.responses)
            await answers.count_tries()
            request = ServedRequest("/v1/responses", "1", b"", "", False)
            mark = Store("background", Raw(b"{}"), background=True)
            running = await answers.begin(mark, "i1", Standing(Tenant("alice")), request)
            assert [one.tries for one in answers.unfinished()] == [running.record.tries] == [tries]

    state = State(tmp_path / "state", 30.0, 1 << 30)
    asyncio.run(asyncio.wait_for(count(state), HANG_SECONDS))
    state.close()
    state = State(tmp_path / "state", 30.0, 1 << 30)
    assert [one.tries for one in state.responses.unfinished()] == [0]
    state.close()


@pytest.mark.parametrize("ring", [["resp_1"], ["resp_1", "resp_2"]])
def test_an_answer_that_comes_before_itself_is_not_gone_round(ring: list[str], responses: Responses) -> None:
    put(responses, *(replace(ONE, id=id, previous=ring[number - 1]) for number, id in enumerate(ring)))
    with pytest.raises(Refused, match="'resp_1' comes before itself"):
        StoredAnswers(responses).conversation("alice", "resp_1")


def test_a_conversation_has_a_bound(responses: Responses, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "MOST_CONVERSATION", 2 * len(ONE.input + ONE.body))
    put(responses, *(replace(ONE, id=f"resp_{n}", previous=f"resp_{n - 1}" if n else "") for n in range(3)))
    answers = StoredAnswers(responses)
    assert len(json.loads(answers.conversation("alice", "resp_1"))) == 2
    with pytest.raises(Refused, match="longer than"):
        answers.conversation("alice", "resp_2")


def test_parts_of_what_programs_say_are_counted_until_their_requests_are_over(
    responses: Responses, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "MOST_MARK", 8)
    monkeypatch.setattr(store, "MOST_MARKS", 12)
    answers = StoredAnswers(responses)
    for _ in range(2):
        with answers.parts_of("alice") as first, answers.parts_of("alice") as second, answers.parts_of("bob") as other:
            first("\N{GRINNING FACE}a")
            first("\ud800")
            with pytest.raises(Refused, match="a program has more"):
                first("a")
            second("abcd")
            with pytest.raises(Refused, match="a tenant has more"):
                second("a")
            other("abcdefgh")


def test_what_later_ones_need_outlives_its_deletion_and_a_restart(tmp_path: Path) -> None:
    """Of a chain 1, 2, 3 and a second child of 1, 4."""
    chain = [
        replace(ONE, id=f"resp_{n}", previous=f"resp_{before}" if before else "", input=f"[{n}]", ended=time.time() + n)
        for n, before in ((1, 0), (2, 1), (3, 2), (4, 1))
    ]

    async def delete(answers: StoredAnswers, *ids: str) -> None:
        for id in ids:
            await asyncio.wait_for(answers.delete("alice", id, lambda _: None), HANG_SECONDS)

    def check(answers: StoredAnswers) -> None:
        assert [turn["input"] for turn in json.loads(answers.conversation("alice", "resp_3"))] == [[1], [2], [3]]
        for lost in ("resp_1", "resp_2"):
            for look in (answers.find, answers.conversation):
                with pytest.raises(Refused, match=f"{lost}' not found"):
                    look("alice", lost)

    async def first(state: State) -> None:
        answers = StoredAnswers(state.responses)
        for record in chain:
            await asyncio.wait_for(answers._put(record), HANG_SECONDS)
        await delete(answers, "resp_1", "resp_2")
        check(answers)

    async def second(state: State) -> None:
        answers = StoredAnswers(state.responses)
        check(answers)
        again = ServedRequest("/v1/responses", "1", b"", "", False)
        with pytest.raises(Refused, match="already"):
            await answers.begin(Store("resp_1", Raw(b"{}")), "i1", Standing(Tenant("alice")), again)
        assert answers.unfinished() == []
        await delete(answers, "resp_3")  # and 2 with it, but not 1, which 4 needs
        assert [turn["input"] for turn in json.loads(answers.conversation("alice", "resp_4"))] == [[1], [4]]
        assert state.responses.find_kept("alice", "resp_2") is None
        await delete(answers, "resp_4")
        assert [state.responses.find_kept("alice", one.id) for one in chain] == [None] * 4

    for body in (first, second):
        state = State(tmp_path / "state", 30.0, 1 << 30)
        asyncio.run(body(state))
        state.close()


def test_what_a_later_one_goes_on_from_is_kept_as_long_as_that_one_within_the_bytes(responses: Responses) -> None:
    """1, 2, 6 and 1, 7 are conversations, each other one is by itself."""
    now = time.time()
    befores = [(1, 0), (2, 1), (3, 0), (4, 0), (6, 2), (7, 1)]
    put(responses, *(turn(number, before, now + number) for number, before in befores))
    put(responses, turn(8, 0, now + 8, 120))
    assert kept(responses, *range(1, 9)) == [1, 2, 6, 7, 8]
    put(responses, turn(9, 7, now + 9, 500))
    assert kept(responses, *range(1, 10)) == [1, 7, 8, 9]
    put(responses, turn(10, 9, now + 10, 300))  # a conversation beyond the bound loses its beginning
    assert kept(responses, *range(1, 11)) == [7, 9, 10]


def test_what_a_later_one_goes_on_from_is_kept_as_many_days(
    responses: Responses, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = StoredAnswers(responses)
    old, now = time.time(), time.time() + 2 * DAY
    put(responses, turn(1, 0, old), turn(2, 1, old), turn(4, 1, old))
    monkeypatch.setattr(time, "time", lambda: now)
    put(responses, turn(3, 2, now))
    assert [one["input"] for one in json.loads(answers.conversation("alice", "resp_3"))] == [[1], [2], [3]]
    put(responses, turn(5, 0, now))
    assert kept(responses, 1, 2, 3, 4, 5) == [1, 2, 3, 5]
    with pytest.raises(Refused, match="'resp_4' not found"):
        answers.conversation("alice", "resp_4")


def test_sizes_are_in_bytes() -> None:
    grown = replace(ONE, input=ONE.input + "界", body=ONE.body + "é", events=(*ONE.events, "界"))
    assert grown.size - ONE.size == 3 + 2 + 3
