"""Programs on disk: kinds, names, owners, quotas, damaged and foreign files."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from pie_control.errors import BadProgram, BadRequest, ConfigError, Overloaded, StorageFull, UnknownName
from pie_control.programs.compiling import ProgramCompiler
from pie_control.programs.kinds import kind_of
from pie_control.programs.native import NativeCompiler
from pie_control.programs.program_host import ProgramHost
from pie_control.programs.store import SERVER, Program, ProgramInfo, ProgramStore, StoreLimits
from pie_inference.options.cache_files import queued
from tests.helpers.guard import HANG_SECONDS

SOURCE = "async def main(args):\n    return 'ü'\n".encode()
COMPONENT = b"\0asm\x0d\x00\x01\x00" + bytes(100)


def put(store: ProgramStore, data: bytes, name: str = "", owner: str = "default", file: str = "") -> ProgramInfo:
    """What an upload does, without compiling."""
    program = store.describe(data, name, owner, file)
    store.make_room(program)
    store.write(program, data)
    store.count_compiled(program.hash)
    store.make_room(program)
    return store.enter(program)


def read(store: ProgramStore, reference: str, owner: str = "default") -> bytes | None:
    return store.try_read(store.get(reference, owner))


def damage(program: Program) -> None:
    program.path.write_bytes(program.path.read_bytes()[:-1])


# ---- names -----------------------------------------------------------------------------------------------------------


def test_a_program_is_named_by_its_content(tmp_path: Path) -> None:
    store = ProgramStore(tmp_path)
    info = put(store, SOURCE, "hello")
    digest = hashlib.sha256(SOURCE).hexdigest()
    assert info == ProgramInfo(digest, "hello", "python", len(SOURCE), None, ("hello",), "", info.uploaded)
    assert time.time() - 600 < info.uploaded <= time.time()
    assert store.get("hello").path.read_bytes() == SOURCE
    assert read(store, digest) == SOURCE


def test_the_same_content_is_one_program_under_two_names(tmp_path: Path) -> None:
    store = ProgramStore(tmp_path)
    first, second = put(store, SOURCE, "a"), put(store, SOURCE, "b")
    assert first.program == second.program
    assert store.get("a").hash == store.get("b").hash
    assert [program.name for program in store.all()] == ["b"]
    assert [store.get(asked).title for asked in ("a", "b", first.program, first.program[:8])] == ["a", "b", "b", "b"]


def test_a_name_stands_for_its_newest_upload_and_the_answer_says_what_it_replaced(tmp_path: Path) -> None:
    store = ProgramStore(tmp_path)
    old, new = put(store, b"x = 1", "name"), put(store, b"x = 2", "name")
    assert (old.replaced, new.replaced) == (None, old.program)
    assert put(store, b"x = 2", "name").replaced is None
    assert store.get("name").hash == new.program
    assert store.get(old.program).title == old.program[:12]


def test_programs_survive_a_restart(tmp_path: Path) -> None:
    before = [put(ProgramStore(tmp_path), data, name) for data, name in ((SOURCE, "text"), (COMPONENT, "binary"))]
    put(ProgramStore(tmp_path), SOURCE, "also text")
    after = ProgramStore(tmp_path)
    assert [after.get(name).hash for name in ("text", "binary", "also text")] == [
        before[0].program,
        before[1].program,
        before[0].program,
    ]
    assert after.get(before[0].program).name == "also text"
    assert read(after, "text") == SOURCE


def test_a_file_is_shown_and_stands_for_nothing(tmp_path: Path) -> None:
    store = ProgramStore(tmp_path)
    first, second = put(store, b"x = 1", file="story"), put(store, b"x = 2", file="story")
    named = put(store, b"x = 3", "story", file="tale")
    for each in (store, ProgramStore(tmp_path)):
        assert [each.get(one.program).title for one in (first, second, named)] == ["story"] * 3
        assert each.get("story").hash == named.program
        assert [each.info(one).names for one in each.all()] == [(), (), ("story",)]
        assert [each.info(one).uploaded for one in each.all()] == [first.uploaded, second.uploaded, named.uploaded]
        with pytest.raises(UnknownName):
            each.get("tale")


def test_programs_without_a_name_go_by_their_hash(tmp_path: Path) -> None:
    store = ProgramStore(tmp_path)
    program = put(store, SOURCE)
    assert program.name == program.program[:12]
    for length in (8, 12, 64):
        assert store.get(program.program[:length]).hash == program.program
    assert ProgramStore(tmp_path).get(program.program[:12]).hash == program.program


@pytest.mark.parametrize("length", [8, 12, 63, 64])
def test_the_beginning_of_the_hash_of_another_program_is_no_name(length: int, tmp_path: Path) -> None:
    store = ProgramStore(tmp_path)
    victim = put(store, SOURCE)
    with pytest.raises(BadRequest, match="looks like the hash of a program"):
        put(store, b"evil = 1", victim.program[:length])
    assert read(store, victim.program[:length]) == SOURCE


def test_tenants_have_names_of_their_own_and_see_their_own_programs(tmp_path: Path) -> None:
    store = ProgramStore(tmp_path)
    put(store, b"mine = 1", "tool", "ada")
    evil = put(store, b"evil = 1", "tool", "mallory")
    assert evil.replaced is None
    for each in (store, ProgramStore(tmp_path)):
        assert read(each, "tool", "ada") == b"mine = 1"
        assert read(each, "tool", "mallory") == b"evil = 1"
        with pytest.raises(UnknownName):
            each.get(evil.program, "ada")
        assert list(each.all("default")) == []


# ---- contents --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "empty"),
        (b" \n\t", "empty"),
        (b"\xff\xfe\x00", "neither a WebAssembly component, a zip archive nor Python text"),
        (b"a = '\0'", "NUL"),
        (b"\0asm\x01\0\0\0", "core WebAssembly module"),
        (b"\0asm", "core WebAssembly module"),
    ],
)
def test_garbage_is_refused_and_not_kept(data: bytes, message: str, tmp_path: Path) -> None:
    store = ProgramStore(tmp_path)
    with pytest.raises(BadProgram, match=message):
        put(store, data, "garbage")
    assert list(store.all()) == []
    assert list((tmp_path / "programs").iterdir()) == []


def test_kinds() -> None:
    assert kind_of(SOURCE) == "python"
    assert kind_of(COMPONENT) == "component"


def test_a_program_beyond_the_bound_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadProgram, match=r"6 bytes, more than 5 \(--max-program-bytes\)"):
        put(ProgramStore(tmp_path, StoreLimits(program_bytes=5)), b"123456", "big")


# ---- quotas ----------------------------------------------------------------------------------------------------------


def test_a_tenant_keeps_a_bounded_number_of_programs(tmp_path: Path) -> None:
    store = ProgramStore(tmp_path, StoreLimits(programs=2))
    put(store, b"x = 1", "one")
    put(store, b"x = 2", "two")
    with pytest.raises(StorageFull, match=r"2 programs.*--max-programs.*DELETE /v1/programs/HASH"):
        put(store, b"x = 3", "three")
    assert len(list((tmp_path / "programs").glob("*.py"))) == 2
    put(store, b"x = 1", "one")  # the same again takes no room
    put(store, b"x = 3", "three", "another tenant")
    store.remove(store.get("one"))
    put(store, b"x = 3", "three")


def test_programs_without_a_name_make_room(tmp_path: Path) -> None:
    store = ProgramStore(tmp_path, StoreLimits(programs=3, stored_bytes=100))
    put(store, b"x = 0", "named")
    first, second = put(store, b"x = 1"), put(store, b"x = 2")
    assert store.make_room(store.describe(b"x = 3"), used=[first.program]) == [second.program]
    put(store, b"x = 3")
    with pytest.raises(StorageFull, match="bytes of programs"):
        put(store, b"#" * 100)
    assert len(list(store.all())) == 3, "nothing goes for what cannot be kept"
    put(store, b"#" * 95)
    assert [each.size for each in ProgramStore(tmp_path).all()] == [5, 95]
    put(store, b"x = 4", "also named")
    put(store, b"x = 5", "named, too")
    with pytest.raises(StorageFull, match="you keep 3 programs"):
        put(store, b"x = 6")


def test_servers_that_share_a_folder_lose_no_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = ProgramStore(tmp_path), ProgramStore(tmp_path)
    read, write = ProgramStore._read_owners, threading.Thread(target=put, args=(other, b"x = 2", "second"))
    waits = threading.Event()

    @contextlib.contextmanager
    def asking(folder: Path) -> Iterator[Callable[[], bool]]:
        with queued(folder) as is_our_turn:
            if threading.current_thread() is write:
                waits.set()
            yield is_our_turn

    def read_while_the_other_begins(store: ProgramStore) -> Any:
        found = read(store)
        if store is one:
            write.start()
            assert waits.wait(HANG_SECONDS)
        return found

    monkeypatch.setattr("pie_control.programs.store.cache_files.queued", asking)
    monkeypatch.setattr(ProgramStore, "_read_owners", read_while_the_other_begins)
    put(one, b"x = 1", "first")
    write.join()
    monkeypatch.undo()
    assert {each.name for each in ProgramStore(tmp_path).all()} == {"first", "second"}


def test_names_are_bounded_too(tmp_path: Path) -> None:
    store = ProgramStore(tmp_path, StoreLimits(programs=3))
    for number in range(3):
        put(store, SOURCE, f"name {number}")
    with pytest.raises(StorageFull, match="3 names"):
        put(store, SOURCE, "one more")
    put(store, SOURCE, "name 0")


def test_a_tenant_keeps_a_bounded_number_of_bytes_with_what_was_compiled(tmp_path: Path) -> None:
    limits = StoreLimits(stored_bytes=1000)
    store = ProgramStore(tmp_path, limits)
    first = put(store, b"#" * 400, "one")
    (store.compiled / f"{first.program}-1.{'0' * 64}.cwasm").write_bytes(bytes(500))
    store.count_compiled(first.program)
    for each in (store, ProgramStore(tmp_path, limits)):
        with pytest.raises(StorageFull, match=r"900 bytes of programs: 101 more.*--max-stored-program-bytes"):
            put(each, b"#" * 101, "two")
        put(each, b"#" * 100, "three")
        each.remove(each.get("three"))
    store.remove(store.get("one"))
    assert list(store.compiled.iterdir()) == []
    put(store, b"#" * 1000, "four")


# ---- deleting --------------------------------------------------------------------------------------------------------


def test_a_deleted_program_is_gone_with_its_names_and_files(tmp_path: Path) -> None:
    store = ProgramStore(tmp_path)
    program = put(store, SOURCE, "a")
    put(store, SOURCE, "b")
    other = put(store, b"x = 1", "other")
    compiled = store.compiled / f"{program.program}-50.x.cwasm"
    compiled.touch()
    assert store.remove(store.get("a"))
    assert not compiled.exists()
    for each in (store, ProgramStore(tmp_path)):
        for reference in ("a", "b", program.program, program.program[:12]):
            with pytest.raises(UnknownName):
                each.get(reference)
        assert [left.hash for left in each.all()] == [other.program]
    put(store, SOURCE, "a")
    assert read(store, "a") == SOURCE


def test_the_content_stays_while_another_tenant_keeps_it(tmp_path: Path) -> None:
    store = ProgramStore(tmp_path)
    for owner in ("ada", "bob"):
        put(store, SOURCE, "tool", owner)
    assert not store.remove(store.get("tool", "ada"))
    assert read(ProgramStore(tmp_path), "tool", "bob") == SOURCE
    assert store.remove(store.get("tool", "bob"))
    assert [path.name for path in (tmp_path / "programs").iterdir()] == ["owners.json"]


# ---- files -----------------------------------------------------------------------------------------------------------


def test_processes_that_share_a_folder_keep_each_other_s_names(tmp_path: Path) -> None:
    one, other = ProgramStore(tmp_path), ProgramStore(tmp_path)
    first, second = put(one, b"x = 1", "one"), put(other, b"x = 2", "other")
    third = put(other, b"x = 3", "one")
    after = ProgramStore(tmp_path)
    assert (after.get("one").hash, after.get("other").hash) == (third.program, second.program)
    assert after.get(first.program).title == first.program[:12]


def test_files_that_another_process_removes_meanwhile_count_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ProgramStore(tmp_path)
    digest = put(store, SOURCE).program
    compiled = store.compiled / f"{digest}-1.cwasm"
    compiled.write_bytes(bytes(1000))
    lstat = Path.lstat

    def removed_before(path: Path) -> os.stat_result:
        if path.suffix == ".cwasm":
            path.unlink(missing_ok=True)
        return lstat(path)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "lstat", removed_before)
        again = ProgramStore(tmp_path)
        again.count_compiled(digest)
    assert not compiled.exists()
    assert again.get(digest).hash == digest


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", "null", '"x"', "[" * 100_000, '{"default": 1}', '{"default": {"a": [1]}}', "\xff"),
        *('{"default": {"a": {"names": 1}}}', '{"default": {"a": {"file": 1}}}'),
    ],
)
def test_damaged_names_are_left_out(text: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    program = put(ProgramStore(tmp_path), SOURCE, "name")
    (tmp_path / "programs" / "owners.json").write_text(text, "latin-1")
    with caplog.at_level(logging.WARNING):
        store = ProgramStore(tmp_path)
    assert "damaged" in caplog.text
    assert store.get(program.program).title == program.program[:12]
    put(store, SOURCE, "name")
    written = json.loads((tmp_path / "programs" / "owners.json").read_text())
    assert written["default"][program.program]["names"] == ["name"]


@pytest.mark.parametrize("data", [SOURCE, COMPONENT])
def test_a_damaged_program_is_forgotten_until_it_is_uploaded_again(data: bytes, tmp_path: Path) -> None:
    put(ProgramStore(tmp_path), data, "name")
    store = ProgramStore(tmp_path)
    program = store.get("name")
    damage(program)
    assert store.try_read(program) is None
    store.forget(program)
    with pytest.raises(UnknownName):
        store.get(program.hash)
    put(store, data, "name")
    assert read(ProgramStore(tmp_path), "name") == data


@pytest.mark.parametrize("suffix", [".py", ".wasm"])
def test_a_file_under_the_hash_of_another_program_is_not_read(suffix: str, tmp_path: Path) -> None:
    (tmp_path / "programs").mkdir(mode=0o700)
    (tmp_path / "programs" / f"{'f00dfeed' * 8}{suffix}").write_bytes(SOURCE)
    store = ProgramStore(tmp_path)
    assert store.try_read(store.get("f00dfeed")) is None


def test_a_file_that_others_can_write_or_a_symlink_is_not_read(tmp_path: Path) -> None:
    store = ProgramStore(tmp_path)
    put(store, SOURCE, "name")
    program = store.get("name")
    program.path.chmod(0o666)
    assert store.try_read(program) is None
    os.rename(program.path, tmp_path / "elsewhere")
    program.path.symlink_to(tmp_path / "elsewhere")
    assert store.try_read(program) is None


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EIO])
def test_a_program_that_cannot_be_read_for_a_while_is_not_taken_for_damaged(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its launch is refused, but nobody forgets it."""

    def fail(path: Path) -> bytes:
        raise OSError(number, os.strerror(number), str(path))

    store = ProgramStore(tmp_path)
    put(store, SOURCE, "name")
    compiler = ProgramCompiler(store, cast(NativeCompiler, None))
    with monkeypatch.context() as patched:
        patched.setattr("pie_control.programs.store.cache_files.read_own_file", fail)
        with pytest.raises(Overloaded, match="cannot be read now: try again"):
            asyncio.run(compiler.bring(store.get("name"), cast(ProgramHost, None)))
    assert read(store, "name") == SOURCE


@pytest.mark.parametrize("folder", [".", "programs", "compiled"])
def test_a_folder_that_others_can_write_is_refused(folder: str, tmp_path: Path) -> None:
    ProgramStore(tmp_path)
    (tmp_path / folder).chmod(0o777)
    with pytest.raises(ConfigError, match="chmod go-w"):
        ProgramStore(tmp_path)


def test_other_files_in_the_folder_are_left_alone(tmp_path: Path) -> None:
    put(ProgramStore(tmp_path), SOURCE, "name")
    (tmp_path / "programs" / "tmpabc").write_bytes(b"left by a crash")
    (tmp_path / "programs" / "notes.py").write_bytes(b"no program")
    assert [program.name for program in ProgramStore(tmp_path).all()] == ["name"]
    assert (tmp_path / "programs" / "notes.py").exists()


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda *_: False)  # as on a disk that is mounted to be read only
    with pytest.raises(ConfigError, match="cannot be written: choose another one: --cache-dir"):
        ProgramStore(tmp_path)


def test_names_that_cannot_be_written_are_not_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, replace = ProgramStore(tmp_path), os.replace
    before = put(store, SOURCE, "name")

    def full(path: str, to: Path) -> None:
        if to.name == "owners.json":
            raise OSError(errno.ENOSPC, "no space left on device")
        replace(path, to)

    with monkeypatch.context() as patched:
        patched.setattr("os.replace", full)
        with pytest.raises(OSError, match="no space"):
            put(store, SOURCE + b"# other", "name")
    assert store.get("name").hash == before.program
    assert [each.hash for each in store.all()] == [before.program]
    assert put(store, SOURCE + b"# other", "name").replaced == before.program


def test_a_deletion_that_cannot_be_written_is_one_if_the_files_are_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ProgramStore(tmp_path)
    put(store, SOURCE, "shared")
    put(store, SOURCE, owner="alice")
    put(store, SOURCE + b"# own", "own")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("os.replace", full)
        store.remove(store.get("own"))
        with pytest.raises(OSError, match="no space"):
            store.remove(store.get("shared"))
        # As where the folder is read only:
        patched.setattr("pie_control.programs.store.cache_files.remove", lambda _: None)
        with pytest.raises(OSError, match="no space"):
            store.remove(store.get(hashlib.sha256(SOURCE).hexdigest(), "alice"))
    for known in (store, ProgramStore(tmp_path)):
        assert [each.name for each in known.all()] == ["shared"]
        assert read(known, "shared") == SOURCE
        assert [each.hash for each in known.all("alice")] == [hashlib.sha256(SOURCE).hexdigest()]


def test_programs_of_the_server_itself_need_no_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = ProgramStore(tmp_path, StoreLimits(programs=1))

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr("os.replace", full)
    monkeypatch.setattr("tempfile.mkstemp", full)
    for name in ("one", "two"):
        data = SOURCE + name.encode()
        put(store, data, name, SERVER)
        assert read(store, name, SERVER) == data
    assert list(store.all()) == []
    assert list(ProgramStore(tmp_path).all(SERVER)) == []  # they are put anew by each server


def test_a_failed_write_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = ProgramStore(tmp_path)

    def full(*_: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(OSError, match="no space"):
        put(store, SOURCE, "name")
    assert list((tmp_path / "programs").iterdir()) == []
