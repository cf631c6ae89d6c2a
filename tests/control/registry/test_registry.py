"""Inferlets by their ids."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace
from pathlib import Path

import pytest

from pie_control import host_memory
from pie_control.config import InferletLimits
from pie_control.durable.inferlets import InferletRecord, InferletRecords, KeptLine
from pie_control.durable.state import State
from pie_control.errors import TooManyRequests, UnknownName
from pie_control.inferlets.events import Ended
from pie_control.inferlets.mailbox import EVENT_BYTES
from pie_control.programs.store import Program
from pie_control.registry import registry
from pie_control.registry.entry import Entry
from pie_control.registry.registry import Registry
from pie_control.tenant_api import MOST_LISTED, listed
from pie_control.tenants.tenant import Standing, Tenant


@pytest.mark.parametrize("digits", [20, 5000])
def test_an_id_of_more_digits_than_any_is_unknown(digits: int) -> None:
    """Python reads at most 4300."""
    with pytest.raises(UnknownName):
        Registry(InferletLimits(), 100).get("i" + "1" * digits)


@pytest.mark.parametrize(("count", "size"), [(100, 0), (1000, 200)])
def test_ends_of_one_tenant_make_nobody_elses_go(count: int, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "KEPT_ENDED", 100 if size else 10)
    monkeypatch.setattr(registry, "KEPT_ENDED_BYTES", 1000)
    inferlets = Registry(InferletLimits(), 100)

    def ends(tenant: str) -> Entry:
        program = Program("ab" * 32, "story", "", "python", 0, Path(), tenant)
        entry = inferlets.new(program, ignore, ignore, Standing(Tenant(tenant)))
        entry.runs()
        inferlets.ended(entry, Ended("finished", "x" * size, inferlet=entry.id))
        return entry

    first = ends("alice")
    last = [ends("bob") for _ in range(count)][-1]
    assert inferlets.get(first.id, "alice") is first
    assert inferlets.get(last.id, "bob") is last
    assert len(inferlets.all("bob")) < 10


@pytest.mark.parametrize("is_read", [True, False])
def test_what_is_forgotten_is_freed_at_once(is_read: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full collection may be minutes away: with results of 1 MB, a thousand ends took 800 MB in place of 64."""
    monkeypatch.setattr(registry, "KEPT_ENDED", 1)
    inferlets = Registry(InferletLimits(), 100)
    gc.disable()
    try:
        ended = []
        for _ in range(2):
            entry = inferlets.new(Program("ab" * 32, "story", "", "python", 0, Path()), ignore, ignore)
            if is_read:
                entry.attach(ignore)
            entry.runs()
            inferlets.ended(entry, Ended("finished", "done", inferlet=entry.id))
            ended.append(weakref.ref(entry))
        del entry
        assert [one() is None for one in ended] == [True, False]
    finally:
        gc.enable()


@pytest.mark.parametrize("size", [0, MOST_LISTED, MOST_LISTED + 1, 1 << 20])
def test_a_list_has_no_long_results(size: int) -> None:
    inferlets = Registry(InferletLimits(), 100)
    entry = inferlets.new(Program("ab" * 32, "story", "", "python", 0, Path()), ignore, ignore)
    entry.runs()
    inferlets.ended(entry, Ended("failed", "x" * size, f"{'x' * size}ValueError", inferlet=entry.id))
    whole = entry.info()
    told = listed(whole)
    assert (told.result is None) == (size > MOST_LISTED)
    assert (told.error or "").endswith("ValueError")
    assert len(told.error or "") <= MOST_LISTED
    assert replace(told, result=whole.result, error=whole.error) == whole


def test_what_inferlets_of_a_tenant_have_not_received_is_bounded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_memory, "machine_memory", lambda: 8 << 20)  # a fourth for all, half of that for a tenant
    inferlets = Registry(InferletLimits(), 100)
    program = Program("ab" * 32, "story", "", "python", 0, Path())
    one, two, other = (inferlets.new(program, ignore, ignore, Standing(Tenant(name))) for name in ("a", "a", "b"))
    one.send("", {"photo": bytes(600_000)})
    with pytest.raises(TooManyRequests, match="let inferlets receive some first"):
        two.send("", {"photo": bytes(600_000)})
    other.send("x" * 600_000)
    one.received(EVENT_BYTES, 600_000)
    two.send("x" * 600_000)
    two.runs()
    inferlets.ended(two, Ended("finished", inferlet=two.id))
    one.send("x" * 600_000)


def test_what_clients_have_not_read_is_bounded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_memory, "machine_memory", lambda: 8 << 20)
    inferlets, ending = Registry(InferletLimits(), 100), list[str]()
    inferlets.on_excess = lambda entry, why: ending.append(f"{entry.id}: {why}")
    program = Program("ab" * 32, "story", "", "python", 0, Path())
    one, two = (inferlets.new(program, ignore, ignore) for _ in range(2))
    inferlets.said(0, [one.number], ["x" * 600_000])
    one.attach(ignore)  # who takes all of it
    inferlets.said(0, [two.number, two.number], ["x" * 600_000] * 2)
    assert len(ending) == 1
    assert ending[0].startswith(f"{two.id}: a tenant may have 1 MiB of messages")
    assert two.outbox.kept_bytes > 1_200_000, "what it has said is there for who reads later"
    two.attach(ignore)  # also what was too much, and did not count
    for each in (one, two):
        each.runs()
        inferlets.ended(each, Ended("finished", inferlet=each.id))
    assert not inferlets._mail._held


def ignore(*_: object) -> None:
    """What nobody wants to hear."""


def test_of_an_inferlet_of_another_tenant_nothing_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = State(tmp_path / "state", 1e6, 1 << 30)
    state.inferlets.launched(1, "alice", "ab" * 32, "story", 1000.0)
    state.inferlets.said(1, KeptLine(1000.5, "stdout", "so far"))
    state.inferlets.ended(
        InferletRecord(1, "alice", "ab" * 32, "story", 0, None, 1000.0, "finished", 1001.0, 0.5, '"done"', None)
    )
    state.close()
    read: list[int] = []
    lines = InferletRecords.lines

    def counted(records: InferletRecords, number: int) -> list[KeptLine]:
        read.append(number)
        return lines(records, number)

    monkeypatch.setattr(registry, "KEPT_ENDED", 0)
    monkeypatch.setattr(InferletRecords, "lines", counted)
    state = State(tmp_path / "state", 1e6, 1 << 30)
    try:
        inferlets = Registry(InferletLimits(), 100, state.inferlets)
        with pytest.raises(UnknownName):
            inferlets.get("i1", "bob")
        assert read == []
        assert [line.text for line in inferlets.get("i1", "alice").logs()] == ["so far"]
        assert inferlets.get("i1", None).result == '"done"'
    finally:
        state.close()
