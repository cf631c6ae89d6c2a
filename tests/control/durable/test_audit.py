"""Who did what: noted, counted by the hour, within bounds, and kept."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from pie_control.cli.main import main
from pie_control.durable.accounts import audit
from pie_control.durable.database import open_database
from pie_control.durable.state import State
from pie_control.tenants.audit import HOUR, MOST_OF_HOUR, MOST_SUBJECT, OTHERS, AuditTrail, Deed
from tests.helpers.guard import HANG_SECONDS


def written(folder: Path) -> list[audit.AuditRecord]:
    with closing(open_database(folder)) as database:
        return audit.list_audit(database, 1000)


def test_the_same_within_an_hour_is_one_deed() -> None:
    times = iter((10.0, 20.0, HOUR + 5.0, HOUR + 5.0))
    trail = AuditTrail(lambda: None, lambda: next(times))
    for _ in range(3):
        trail.note("alice", "key_1", "launch", "hello")
    trail.note("bob", "", "launch", "hello")
    found = {deed: (one.first, one.last, one.count) for deed, one in trail.take().items()}
    assert found == {
        Deed(0, "alice", "key_1", "launch", "hello"): (10.0, 20.0, 2),
        Deed(1, "alice", "key_1", "launch", "hello"): (HOUR + 5.0, HOUR + 5.0, 1),
        Deed(1, "bob", "", "launch", "hello"): (HOUR + 5.0, HOUR + 5.0, 1),
    }
    assert not trail.take()


def test_a_flood_of_different_deeds_makes_nothing_else_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "MOST_ROWS", 2 * MOST_OF_HOUR)
    monkeypatch.setattr(audit, "TRIM_EACH", 1)
    state = State(tmp_path / "state", 1e6, 1 << 30)
    state.audit._clock = lambda: 10.0
    state.audit.note("alice", "key_1", "upload", "hello")
    for number in range(3 * MOST_OF_HOUR):
        state.audit.note("", "", "refused", f"unauthorized, from 2001:db8::{number}")
        if number % 100 == 0:
            state._writer.wait(HANG_SECONDS)
    state.audit.note("alice", "key_1", "load an adapter", "x" * 1_000_000)
    state.close()
    found = {(one.tenant, one.action, one.subject): one.count for one in written(tmp_path / "state")}
    assert len(found) == MOST_OF_HOUR + 3
    assert found["alice", "upload", "hello"] == 1
    assert found["alice", "load an adapter", "x" * MOST_SUBJECT] == 1
    assert found["", "refused", OTHERS] == 2 * MOST_OF_HOUR


def test_without_a_state_nothing_is_kept() -> None:
    trail = AuditTrail()
    trail.note("alice", "", "upload", "hello")
    assert not trail.take()


def test_what_was_done_is_kept_and_added_up_and_the_oldest_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        state = State(tmp_path / "state", 1e6, 1 << 30)
        state.audit.note("alice", "key_1", "upload", "hello")
        state.close()
    (found,) = written(tmp_path / "state")
    assert (found.tenant, found.key, found.action, found.subject) == ("alice", "key_1", "upload", "hello")
    assert found.first <= found.last
    monkeypatch.setattr(audit, "MOST_ROWS", 3)
    state = State(tmp_path / "state", 1e6, 1 << 30)
    for number in range(5):
        state.audit.note("alice", "", "upload", f"program {number}")
    state.close()
    assert [one.subject for one in written(tmp_path / "state")] == ["program 2", "program 3", "program 4"]


def test_keys_that_are_made_and_revoked_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = ["--state", str(tmp_path / "state")]
    assert main(["keys", "add", "alice", "--name", "laptop", *state]) == 0
    key = capsys.readouterr().out.strip()
    assert main(["keys", "revoke", "laptop", *state]) == 0
    capsys.readouterr()
    assert main(["keys", "audit", *state]) == 0
    told = capsys.readouterr().out
    heading, made, revoked = told.strip().splitlines()
    assert heading.split() == ["FIRST", "LAST", "COUNT", "TENANT", "KEY", "ACTION", "SUBJECT"]
    assert "make a key" in made
    assert "revoke a key" in revoked
    assert key not in told
    assert key[4:] not in told
    assert main(["keys", "audit", "--json", "--tenant", "bob", *state]) == 0
    assert capsys.readouterr().out.strip() == "[]"
