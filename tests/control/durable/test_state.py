"""What a state folder keeps: over a restart, a crash, a full disk; and who may use it."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from pie_control.durable import commits, database, inferlets, journal, writer
from pie_control.durable.commits import Write
from pie_control.durable.inferlets import LINES, LOST, NUMBERS, InferletRecord, KeptLine
from pie_control.durable.state import State
from pie_control.errors import ConfigError, StateUnavailable
from tests.helpers.full_disk import full_disk
from tests.helpers.guard import HANG_SECONDS

ENDED = InferletRecord(1, "alice", "ab" * 32, "story", 2, "i7", 1000.0, "finished", 1001.0, 0.5, '"done"', None)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "state"


def opened(folder: Path, days: float = 1e6, most_bytes: int = 1 << 30) -> State:
    return State(folder, days, most_bytes)


def during(state: State, body: Callable[[State], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(body(state), HANG_SECONDS))
    state.close()


def launch(state: State, tenant: str = "alice") -> int:
    number = state.inferlets.next_number()
    state.inferlets.launched(number, tenant, "ab" * 32, "story", 1000.0)
    return number


async def end(state: State, record: InferletRecord) -> None:
    state.inferlets.ended(record)
    await asyncio.to_thread(state.inferlets._writer.wait, HANG_SECONDS)


def crashed(folder: Path, to: Path) -> Path:
    """The folder as a server leaves it that is killed now."""
    return Path(shutil.copytree(folder, to))


def test_what_ended_is_known_after_a_restart(folder: Path) -> None:
    async def run(state: State) -> None:
        number = launch(state)
        for place in range(LINES + 10):
            state.inferlets.said(number, KeptLine(5.0, "stdout", f"line {place}"))
        await end(state, replace(ENDED, number=number))

    during(opened(folder), run)
    again = opened(folder)
    assert again.inferlets.find(1) == ENDED
    assert [*again.inferlets.newest(10)] == [ENDED]
    lines = again.inferlets.lines(1)
    assert (len(lines), lines[0].text, lines[-1]) == (LINES, "line 10", KeptLine(5.0, "stdout", f"line {LINES + 9}"))
    assert again.inferlets.next_number() == 2
    again.close()


def test_what_ran_at_a_crash_is_lost_with_its_log_and_numbers_do_not_come_again(folder: Path, tmp_path: Path) -> None:
    copies: list[Path] = []

    async def run(state: State) -> None:
        for _ in range(3):
            number = launch(state)
        state.inferlets.said(number, KeptLine(5.0, "log", "so far"))
        await asyncio.to_thread(state.inferlets._writer.wait, HANG_SECONDS)
        copies.append(crashed(folder, tmp_path / "crashed"))

    during(opened(folder), run)
    again = opened(copies[0])
    again.inferlets._writer.wait(HANG_SECONDS)
    found = again.inferlets.find(3)
    assert found is not None
    assert (found.status, found.error, found.tenant) == ("lost", LOST, "alice")
    assert [line.text for line in again.inferlets.lines(3)] == ["so far"]
    assert again.inferlets.next_number() == NUMBERS + 1
    again.close()


def test_no_number_that_was_given_comes_again_after_a_crash(folder: Path, tmp_path: Path) -> None:
    state = opened(folder)
    for number in range(1, 2 * NUMBERS + 2):
        assert state.inferlets.next_number() == number
        if number % (NUMBERS // 2) in (0, 1):
            again = opened(crashed(folder, tmp_path / str(number)))
            assert number < again.inferlets.next_number() <= number + NUMBERS + 1
            again.close()
    state.close()


def test_what_is_old_or_too_much_goes(folder: Path) -> None:
    async def run(state: State) -> None:
        for ended in (time.time() - 50 * 86400, time.time(), time.time()):
            number = launch(state)
            state.inferlets.said(number, KeptLine(5.0, "log", "x"))
            await end(state, replace(ENDED, number=number, ended=ended, result="x" * 1000))

    during(opened(folder), run)
    for days, most, left in ((30.0, 1 << 30, [2, 3]), (30.0, 2000, [3])):
        again = opened(folder, days, most)
        again.inferlets._writer.wait(HANG_SECONDS)
        assert [one.number for one in again.inferlets.newest(10)] == left
        assert not again.inferlets.lines(1)
        assert again.inferlets.lines(3)
        again.close()


@pytest.fixture
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "RETRY_SECONDS", 0.01)


def test_a_clock_that_is_ahead_makes_a_day_go_at_a_time(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time()
    during(opened(folder), lambda state: end(state, replace(ENDED, number=launch(state), ended=now)))
    monkeypatch.setattr(time, "time", lambda: now + 1000 * 86400)
    for is_kept in (True, True, False):  # each start looks, as does each hour
        again = opened(folder, 2.5)
        again.inferlets._writer.wait(HANG_SECONDS)
        assert (again.inferlets.find(1) is not None) == is_kept
        again.close()
    with contextlib.closing(sqlite3.connect(folder / database.FILE)) as file:
        assert file.execute("SELECT value FROM counters WHERE name = 'looked'").fetchone()[0] < now + 4 * 86400


def test_a_start_gives_back_what_is_free(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "FREE_BYTES", 1 << 20)

    async def much(state: State) -> None:
        for _ in range(8):
            await end(state, replace(ENDED, number=launch(state), result="x" * (1 << 18)))

    during(opened(folder), much)
    assert (folder / database.FILE).stat().st_size > 2 << 20
    for most, size in ((1000, 2 << 20), (1000, 1 << 18)):  # what goes first makes room
        again = opened(folder, most_bytes=most)
        again.inferlets._writer.wait(HANG_SECONDS)
        again.close()
        assert (size < 1 << 20) == ((folder / database.FILE).stat().st_size < size)


@pytest.mark.usefixtures("quick_retries")
def test_a_full_disk_is_told_of_and_what_was_not_written_comes_later(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full, commit = [True], commits.commit
    copies: list[Path] = []

    def refuse(into: sqlite3.Connection, writes: list[Write], number: int) -> None:
        if full[0]:
            raise sqlite3.OperationalError("database or disk is full")
        commit(into, writes, number)

    async def run(state: State) -> None:
        number = launch(state)
        await asyncio.to_thread(state.inferlets._writer.wait, HANG_SECONDS)
        assert state.trouble == ""
        monkeypatch.setattr(writer, "commit", refuse)
        await end(state, replace(ENDED, number=number))  # its client hears of the end all the same
        assert state.trouble.endswith("so a restart may forget what ends now: database or disk is full")
        copies.append(crashed(folder, tmp_path / "crashed"))
        full[0] = False
        while state.trouble:
            await asyncio.sleep(0.001)
        assert state.inferlets.find(number) == ENDED

    during(opened(folder), run)
    again = opened(copies[0])  # of the journal, which had room
    assert again.inferlets.find(1) == ENDED
    again.close()


def test_what_the_journal_has_no_room_for_is_committed_at_once(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "MOST_BYTES", 0)
    monkeypatch.setattr(writer, "MOMENT_SECONDS", HANG_SECONDS)
    copies: list[Path] = []

    async def run(state: State) -> None:
        state.inferlets.ended(replace(ENDED, number=launch(state)))
        while state.inferlets.find(1) is None:
            await asyncio.sleep(0.001)
        copies.append(crashed(folder, tmp_path / "crashed"))

    during(opened(folder), run)
    again = opened(copies[0])
    assert again.inferlets.find(1) == ENDED
    again.close()


def test_a_record_that_was_cut_off_and_those_that_are_committed_do_no_harm(folder: Path, tmp_path: Path) -> None:
    state = opened(folder)
    records = journal.Journal(tmp_path / "records")
    assert records.append(7, [("INSERT INTO counters VALUES (?, ?)", ("a", 1))])
    first = records.path.stat().st_size
    assert records.append(8, [("INSERT INTO counters VALUES (?, ?)", ("b", b"\0"))])
    whole = records.path.read_bytes()
    records.close()
    for size in range(len(whole)):
        records.path.write_bytes(whole[:size])
        cut = journal.Journal(records.path)
        assert [number for number, _ in cut.records()] == ([7] if size >= first else [])
        cut.close()
    state.inferlets.ended(replace(ENDED, number=launch(state)))
    before = crashed(folder, tmp_path / "before")
    state.inferlets._writer.wait(HANG_SECONDS)
    after = crashed(folder, tmp_path / "after")
    assert (after / "journal").stat().st_size > 0
    for copy in (before, after):
        again = opened(copy)
        assert again.inferlets.find(1) == ENDED
        again.close()
    state.close()
    assert (folder / "journal").stat().st_size == 0


@pytest.mark.parametrize("taken", ["state.sqlite3", "*", "."])
def test_a_file_that_is_taken_away_is_written_anew_at_once(folder: Path, tmp_path: Path, taken: str) -> None:
    """With all that was in it, also where its journal and lock, or the whole folder, went with it."""

    async def run(state: State) -> None:
        await end(state, replace(ENDED, number=launch(state)))
        if taken == ".":
            shutil.rmtree(folder)
        for one in folder.glob(taken) if taken != "." else ():
            one.unlink()
        await end(state, replace(ENDED, number=launch(state)))
        for number in (3, 4):  # into the file that is there now
            assert state.trouble == ""
            await end(state, replace(ENDED, number=launch(state)))
            assert state.inferlets.find(number) is not None
        with pytest.raises(ConfigError, match="another server"):
            opened(folder)
        copy = opened(crashed(folder, tmp_path / "crashed"))
        assert [one.number for one in copy.inferlets.newest(10)] == [1, 2, 3, 4]
        copy.close()

    during(opened(folder), run)
    again = opened(folder)
    assert [one.number for one in again.inferlets.newest(10)] == [1, 2, 3, 4]
    assert again._reader.execute("PRAGMA integrity_check") == [("ok",)]
    again.close()
    assert (folder / database.FILE).stat().st_mode & 0o777 == 0o600


def test_a_file_that_cannot_be_written_now_can_be_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "BUSY_SECONDS", 0.0)
    with contextlib.closing(database.open_database(database.own_folder(folder))) as writing:
        writing.execute("BEGIN IMMEDIATE")
        with pytest.raises(ConfigError, match="locked"):
            database.open_database(folder)
        with contextlib.closing(database.open_database(folder, to_read=True)) as reading:
            assert reading.execute("SELECT count(*) FROM keys").fetchone() == (0,)


def test_a_folder_that_cannot_be_looked_at_is_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, "input/output error")

    monkeypatch.setattr(Path, "stat", broken)
    with pytest.raises(ConfigError, match=r"cannot be used: .*input/output error"):
        database.check_exists(folder)
    monkeypatch.undo()


def test_other_processes_that_look_leave_what_the_server_writes(folder: Path, tmp_path: Path) -> None:
    """Whoever closes a database last deletes the journal of SQLite, and must not take itself for the last one."""
    makes = (
        "import sys; from pathlib import Path; from pie_control.durable import database, keys\n"
        "one = database.open_database(Path(sys.argv[1]))\n"
        "keys.add_key(one, 'alice', sys.argv[2], sys.argv[2].encode(), '', (), None); one.close()"
    )

    async def run(state: State) -> None:
        for key in ("first", "second"):
            await end(state, replace(ENDED, number=launch(state)))
            subprocess.run([sys.executable, "-c", makes, folder, key], check=True, timeout=HANG_SECONDS)
            assert state.keys.find(key.encode()) is not None  # at once
            assert state.keys.look()  # so what depends on the keys is looked at, too
            assert not state.keys.look()
        assert state.trouble == ""
        assert (folder / f"{database.FILE}-wal").exists()

    during(opened(folder), run)
    again = opened(folder)
    assert [one.number for one in again.inferlets.newest(10)] == [1, 2]
    again.close()


def test_a_journal_of_sqlite_that_is_taken_away_is_told_of_and_our_own_has_the_rest(folder: Path) -> None:
    async def run(state: State) -> None:
        await end(state, replace(ENDED, number=launch(state)))
        (folder / f"{database.FILE}-wal").unlink()
        await end(state, replace(ENDED, number=launch(state)))
        assert "state.sqlite3-wal was removed: start the server again" in state.trouble

    during(opened(folder), run)
    again = opened(folder)
    assert [one.number for one in again.inferlets.newest(10)] == [1, 2]
    again.close()


def damage(folder: Path, table: str) -> None:
    """Overwrites the pages of a table in the file, which nobody has open."""
    with contextlib.closing(sqlite3.connect(folder / database.FILE)) as one:
        (root,) = one.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (table,)).fetchone()
        (size,) = one.execute("PRAGMA page_size").fetchone()
    with (folder / database.FILE).open("r+b") as file:
        file.seek((root - 1) * size)
        file.write(b"x" * size)


def test_what_cannot_be_read_or_written_is_told_of_and_kept_in_the_journal(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    during(opened(folder), lambda state: end(state, replace(ENDED, number=launch(state))))
    good = (folder / database.FILE).read_bytes()
    damage(folder, "lines")

    async def run(state: State) -> None:
        with pytest.raises(StateUnavailable, match="cannot be read: database disk image is malformed"):
            state.inferlets.lines(1)
        assert f"the state in {folder / database.FILE} cannot be read: database disk image is malformed" in caplog.text
        assert "the state cannot be" in state.trouble
        number = launch(state)
        state.inferlets.said(number, KeptLine(5.0, "stdout", "hello"))
        await end(state, replace(ENDED, number=number))
        assert "cannot be written" in state.trouble

    during(opened(folder), run)
    (folder / database.FILE).write_bytes(good)  # the operator has a copy
    again = opened(folder)
    assert [one.number for one in again.inferlets.newest(10)] == [1, 2]
    assert [one.text for one in again.inferlets.lines(2)] == ["hello"]
    again.close()


def test_a_server_that_cannot_read_its_keys_does_not_start(folder: Path) -> None:
    opened(folder).close()
    damage(folder, "keys")
    with pytest.raises(StateUnavailable, match="malformed"):
        opened(folder)


def test_a_file_that_is_taken_away_is_missed_while_nothing_happens(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "LOOK_SECONDS", 0.01)

    async def run(state: State) -> None:
        await end(state, replace(ENDED, number=launch(state)))
        (folder / database.FILE).unlink()
        while state._writer.files == 1:
            await asyncio.sleep(0.01)
        assert state.inferlets.find(1) is not None

    during(opened(folder), run)


def test_another_file_in_its_place_is_told_of_and_left_alone(folder: Path) -> None:
    async def run(state: State) -> None:
        (folder / database.FILE).unlink()
        (folder / database.FILE).write_bytes(b"mine")
        await end(state, replace(ENDED, number=launch(state)))
        assert "was replaced by another file: stop the server" in state.trouble

    during(opened(folder), run)
    assert (folder / database.FILE).read_bytes() == b"mine"


def test_what_no_table_can_hold_takes_nothing_else_with_it(folder: Path) -> None:
    async def run(state: State) -> None:
        launch(state)
        state.inferlets.launched(launch(state), "alice", "", "twice", 0.0)
        await end(state, replace(ENDED, result="\ud800"))
        await end(state, ENDED)
        assert (state.trouble, state.inferlets.find(1)) == ("", ENDED)

    during(opened(folder), run)


def test_a_folder_has_one_server(folder: Path) -> None:
    state = opened(folder)
    with pytest.raises(ConfigError, match=f"another server \\(process {os.getpid()}\\) uses the state folder"):
        opened(folder)
    state.close()
    opened(folder).close()


def test_a_full_disk_at_the_start_is_told(folder: Path) -> None:
    with full_disk(), pytest.raises(ConfigError, match=r"lock cannot be used: .*choose another one by --state"):
        opened(folder)
    opened(folder).close()


def test_a_newer_schema_is_refused_and_left_alone(folder: Path) -> None:
    opened(folder).close()
    file = sqlite3.connect(folder / database.FILE)
    file.execute("PRAGMA user_version = 99")
    with pytest.raises(ConfigError, match="newer version of Pie \\(schema 99"):
        opened(folder)
    assert file.execute("PRAGMA user_version").fetchone() == (99,)
    file.close()


def test_responses_of_a_schema_without_uses_count_as_used_when_they_ended(folder: Path) -> None:
    (version,) = (number for number, script in enumerate(database.MIGRATIONS) if "TABLE response_uses" in script)
    folder.mkdir(mode=0o700)
    file = sqlite3.connect(folder / database.FILE)
    for script in database.MIGRATIONS[:version]:
        file.executescript(script)
    file.execute(f"PRAGMA user_version = {version}")
    values = "'alice', ?, 'i1', '/v1/responses', '1', 1000.0, ?, 0, 1, '', x'', '[]', '{}', x'', 4, 0"
    now = time.time()
    for number, ended in enumerate((now, None, 2000.0)):
        file.execute(f"INSERT INTO responses VALUES ({values})", (f"r{number}", ended))
    file.commit()
    opened(folder).close()
    found = file.execute("SELECT id, used FROM response_uses ORDER BY id").fetchall()
    file.close()
    assert found[:2] == [("r0", now), ("r1", 1000.0)]
    assert ("r2", 2000.0) not in found, "it is older than responses are kept"


def test_what_is_no_database_is_refused(folder: Path) -> None:
    folder.mkdir(mode=0o700)
    (folder / database.FILE).write_bytes(b"something else, and long enough to be looked at" * 100)
    with pytest.raises(ConfigError, match="cannot be used: file is not a database"):
        opened(folder)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everything")
def test_a_file_that_cannot_be_written_is_refused(folder: Path) -> None:
    opened(folder).close()
    (folder / database.FILE).chmod(0o400)
    with pytest.raises(ConfigError, match="--state none"):
        opened(folder)


def test_a_folder_in_which_others_write_is_refused(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(ConfigError, match="chmod go-w"):
        opened(folder)


def test_a_folder_of_another_user_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir()
    own = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: own + 1)
    with pytest.raises(ConfigError, match=rf"belongs to another user \(number {own}\): be that user.* -u '#{own}'"):
        opened(folder)


def test_a_backup_has_what_there_is_while_the_server_runs(folder: Path, tmp_path: Path) -> None:
    async def run(state: State) -> None:
        state.inferlets.ended(replace(ENDED, number=launch(state)))  # committed or not
        database.back_up(folder, tmp_path / "backup")

    during(opened(folder), run)
    assert (tmp_path / "backup").stat().st_mode & 0o777 == 0o600
    copy = sqlite3.connect(tmp_path / "backup")
    assert copy.execute(f"SELECT {inferlets.COLUMNS} FROM inferlets").fetchall()[0][:4] == (
        *(1, "alice", "ab" * 32, "story"),
    )
    copy.close()
    with pytest.raises(ConfigError, match="exists already"):
        database.back_up(folder, tmp_path / "backup")
    with pytest.raises(ConfigError, match="no state in"):
        database.back_up(tmp_path, tmp_path / "other")


def test_a_server_starts_while_a_command_looks_for_one(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fcntl

    opened(folder).close()
    with (folder / "lock").open("rb") as looks:
        fcntl.flock(looks, fcntl.LOCK_SH)
        monkeypatch.setattr(database, "sleep", lambda _: looks.close())
        opened(folder).close()
