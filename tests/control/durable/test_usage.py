"""What tenants and keys have used: day by day, over restarts."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path

import pytest

from pie_control.cli.main import main
from pie_control.durable.accounts.bills import Bills
from pie_control.durable.accounts.usage import MOST_DAYS, UsageRecord, day_of
from pie_control.durable.database import open_database
from pie_control.durable.keys import add_key, list_keys
from pie_control.durable.state import State
from pie_control.tenants.budgets import DAY, Budget
from pie_control.tenants.meters import Meters
from pie_control.tenants.tenant import Standing, Tenant
from tests.helpers.guard import HANG_SECONDS

ALICE, LAPTOP = Standing(Tenant("alice")), Standing(Tenant("alice"), key="key_1")
BOB = Standing(Tenant("bob"))
FIRST = int(time.time() // DAY) - 10
"""A day."""


class Server:
    """What counts and bills, by a clock of the test."""

    def __init__(self, folder: Path, now: float) -> None:
        self.now = now
        self.meters = Meters()
        self.state = State(folder, 1e6, 1 << 30)
        self.used_keys = {"key_1"}
        self.bills = Bills(self.meters, self.state.usage, lambda: self.now, lambda: self.used_keys)

    def close(self) -> None:
        self.bills.write()
        self.state.close()


def test_usage_is_kept_by_day_and_key_and_goes_on_after_a_restart(tmp_path: Path) -> None:
    first = Server(tmp_path / "state", FIRST * DAY + 5)
    first.meters.of(LAPTOP).requests(0.0)
    first.meters.of(LAPTOP).computes(30, 0.0)
    first.meters.of(LAPTOP).runs(0.5, 0.0)
    first.meters.of(BOB).generates(7, 0.0)
    first.bills.write()
    first.now += DAY
    first.bills.write()
    assert [*first.bills.usage(1)] == []
    first.meters.of(LAPTOP).generates(4, 0.0)
    first.close()

    second = Server(tmp_path / "state", (FIRST + 1) * DAY + 100)
    second.meters.of(LAPTOP).generates(2, 0.0)
    second.meters.of(ALICE).requests(0.0)
    days = [day_of(FIRST + number).isoformat() for number in range(2)]
    yesterday = [
        UsageRecord(days[0], "alice", "key_1", 1, 30, 0, 0.5),
        UsageRecord(days[0], "bob", "", 0, 0, 7, 0.0),
    ]
    today = [
        UsageRecord(days[1], "alice", "", 1, 0, 0, 0.0),
        UsageRecord(days[1], "alice", "key_1", 0, 0, 6, 0.0),
    ]
    assert [*second.bills.usage(2)] == yesterday + today
    assert [*second.bills.usage(2, "bob")] == yesterday[1:]
    assert [*second.bills.usage(1)] == today
    second.close()


def test_what_was_used_before_a_restart_counts_for_the_day(tmp_path: Path) -> None:
    first = Server(tmp_path / "state", FIRST * DAY)
    first.meters.of(LAPTOP).computes(90, 0.0)
    first.close()
    second = Server(tmp_path / "state", FIRST * DAY + 3600)
    second.meters.use({"alice": Budget(tokens_per_day=100)})
    assert not second.meters.of(ALICE).over_today
    second.meters.of(ALICE).computes(10, 0.0)
    assert second.meters.of(LAPTOP).over_today
    second.now += DAY
    second.bills.write()
    assert not second.meters.of(LAPTOP).over_today
    second.close()


def test_a_clock_that_is_set_back_and_forth_forgets_nothing(tmp_path: Path) -> None:
    server = Server(tmp_path / "state", FIRST * DAY)
    server.meters.use({"bob": Budget(tokens_per_day=10)})
    for tokens, days in ((6, 0), (1, -1), (5, 1), (2, -1)):
        server.now += days * DAY
        server.bills.write()
        server.meters.of(BOB).computes(tokens, 0.0)
        server.bills.write()
        server.state.usage._writer.wait(HANG_SECONDS)
    assert not server.meters.of(BOB).over_today
    server.now += DAY
    server.bills.write()
    assert server.meters.of(BOB).over_today
    assert [one.prompt_tokens for one in server.bills.usage(2)] == [3, 11]
    server.close()


def test_keys_that_are_not_used_any_more_are_forgotten_with_the_day(tmp_path: Path) -> None:
    server = Server(tmp_path / "state", FIRST * DAY)
    for number in range(1, 4):
        server.meters.use_key(f"key_{number}", Budget(tokens_per_day=100))
        server.meters.of(Standing(Tenant("alice"), key=f"key_{number}")).computes(7 * number, 0.0)
    server.used_keys = {"key_1"}
    server.now += DAY
    server.bills.write()
    assert [meter.key for meter in server.meters.all] == ["key_1", "", ""]
    again = server.meters.of(Standing(Tenant("alice"), key="key_4"))
    assert server.meters.all[again.number] is again
    assert len(server.meters.all) == 3
    server.meters.use_key("key_4", Budget(tokens_per_day=100))
    again.computes(100, 0.0)
    assert again.over_today
    assert not server.meters.of(LAPTOP).over_today
    assert [(one.key, one.prompt_tokens) for one in server.bills.usage(1)] == [("key_4", 100)]
    now = server.now
    server.close()
    second = Server(tmp_path / "state", now)
    assert [record.prompt_tokens for record in second.bills.usage(2)] == [7, 14, 21, 100]
    second.close()


def test_only_changes_are_written() -> None:
    meters = Meters()
    meters.of(ALICE).computes(1, 0.0)
    meters.of(BOB)
    assert [(tenant, key) for tenant, key, _ in meters.changed()] == [("alice", "")]
    assert meters.changed() == []
    meters.of(ALICE).requests(0.0)
    assert len(meters.changed()) == 1


def tenants(folder: Path) -> list[str]:
    """Those with usage."""
    with closing(open_database(folder)) as database:
        return [tenant for (tenant,) in database.execute("SELECT tenant FROM usage")]


def test_usage_that_is_too_old_goes(tmp_path: Path) -> None:
    old = Server(tmp_path / "state", time.time() - (MOST_DAYS + 2) * DAY)
    old.meters.of(ALICE).computes(1, 0.0)
    old.close()
    assert tenants(tmp_path / "state") == ["alice"]
    new = Server(tmp_path / "state", time.time())
    new.meters.of(BOB).computes(1, 0.0)
    new.close()
    assert tenants(tmp_path / "state") == ["bob"]


def test_a_key_has_its_budget(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = str(tmp_path / "state")
    own = ["--requests-per-minute", "60", "--tokens-per-minute", "5000", "--tokens-per-day", "90000"]
    assert main(["keys", "add", "alice", "--name", "tool", *own, "--state", state]) == 0
    with closing(open_database(tmp_path / "state")) as database:
        add_key(database, "alice", "other", b"x", "abcd", (), None)
        assert [one.budget for one in list_keys(database)] == [Budget(60, 5000, 90_000), Budget()]
    for wrong in ("0", "-1", "many", "1e3"):
        with pytest.raises(SystemExit):
            main(["keys", "add", "alice", "--name", "x", f"--tokens-per-day={wrong}", "--state", state])
        assert "a whole number of at least 1" in capsys.readouterr().err


def test_a_key_is_for_a_tenant_that_the_server_has(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def add(tenant: str, *more: str) -> int:
        name = " ".join([tenant, *more])  # which no valid key may have twice
        return main(["keys", "add", tenant, "--name", name, "--state", str(tmp_path / "state"), *more])

    assert add("alice") == 0  # no server has told whom it serves
    assert "needs a tenant alice" in capsys.readouterr().err
    assert add("default") == 0
    told = capsys.readouterr().err
    assert f"no server has used the state in {tmp_path / 'state'} yet" in told
    assert "needs a tenant" not in told
    for names in (["old"], ["bob", *(f"tenant{number:02}" for number in range(30))]):
        state = State(tmp_path / "state", 1e6, 1 << 30)
        state.tell_tenants(names)
        state.close()
    assert add("bob") == 0
    for missing in ("alice", "old", "default"):
        assert add(missing) == 2
        told = capsys.readouterr().err
        assert f"no tenant '{missing}'" in told
        assert "it has bob, tenant00" in told
        assert "and 11 more" in told
        assert add(missing, "--new") == 0


def test_usage_is_told_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server = Server(tmp_path / "state", time.time())
    server.meters.of(LAPTOP).requests(0.0)
    server.meters.of(LAPTOP).computes(30, 0.0)
    server.close()
    assert main(["keys", "usage", "--state", str(tmp_path / "state")]) == 0
    heading, row = capsys.readouterr().out.strip().splitlines()
    assert heading.split()[:4] == ["DAY", "TENANT", "KEY", "REQUESTS"]
    assert row.split()[1:] == ["alice", "key_1", "1", "30", "0", "0.0"]
    assert main(["keys", "usage", "--tenant", "bob", "--json", "--state", str(tmp_path / "state")]) == 0
    assert capsys.readouterr().out.strip() == "[]"
