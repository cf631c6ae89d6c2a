"""Uploaded programs: kinds, names, persistence, damaged files."""

from __future__ import annotations

import hashlib
import json
import logging
from pathlib import Path

import pytest

import tests.helpers.wat as wat
from pie_control.errors import BadProgram, BadRequest, UnknownName
from pie_control.programs import store as programs
from pie_control.programs.store import ProgramStore, kind_of
from pie_control.sandbox.components import compile_component, try_load_compiled
from pie_control.sandbox.engine import new_engine

SOURCE = "async def main(args):\n    return 'ü'\n".encode()
COMPONENT = b"\0asm\x0d\x00\x01\x00" + bytes(100)


def damage(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def test_a_program_is_named_by_its_content(tmp_path: Path) -> None:
    program = ProgramStore(tmp_path).put(SOURCE, "hello.py")
    assert program.hash == hashlib.sha256(SOURCE).hexdigest()
    assert (program.name, program.kind, program.size) == ("hello.py", "python", len(SOURCE))
    assert program.source == SOURCE.decode()
    assert program.path.read_bytes() == SOURCE


def test_the_same_content_is_one_program_under_two_names(tmp_path: Path) -> None:
    store = ProgramStore(tmp_path)
    first, second = store.put(SOURCE, "a"), store.put(SOURCE, "b")
    assert first.hash == second.hash
    assert store.get("a").hash == store.get("b").hash
    assert len(store.all()) == 1


def test_a_name_stands_for_its_newest_upload(tmp_path: Path) -> None:
    store = ProgramStore(tmp_path)
    old, new = store.put(b"x = 1", "name"), store.put(b"x = 2", "name")
    assert store.get("name").hash == new.hash
    assert store.get(old.hash).hash == old.hash


def test_programs_survive_a_restart(tmp_path: Path) -> None:
    before = [ProgramStore(tmp_path).put(data, name) for data, name in ((SOURCE, "text"), (COMPONENT, "binary"))]
    after = ProgramStore(tmp_path)
    assert [after.get(program.name).info() for program in before] == [program.info() for program in before]
    assert after.get("text").source == SOURCE.decode()


def test_programs_without_a_name_go_by_their_hash(tmp_path: Path) -> None:
    store = ProgramStore(tmp_path)
    program = store.put(SOURCE, "")
    assert store.get(program.hash[:12]).hash == program.hash
    assert store.get(program.hash[:8]).hash == program.hash


def test_a_prefix_must_be_long_enough_and_unique(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = ProgramStore(tmp_path)
    program = store.put(SOURCE, "x")
    with pytest.raises(UnknownName, match="upload it first"):
        store.get(program.hash[:7])
    monkeypatch.setattr(programs, "MIN_PREFIX", 0)
    store.put(b"another = 1", "y")
    with pytest.raises(BadRequest, match="2 programs have hashes"):
        store.get("")


def test_a_name_cannot_stand_before_the_hash_of_another_program(tmp_path: Path) -> None:
    store = ProgramStore(tmp_path)
    victim = store.put(SOURCE, "victim")
    store.put(b"evil = 1", victim.hash)
    assert store.get(victim.hash).source == SOURCE.decode()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "empty"),
        (b" \n\t", "empty"),
        (b"\xff\xfe\x00", "neither a WebAssembly component nor Python text"),
        (b"a = '\0'", "NUL"),
        (b"\0asm\x01\0\0\0", "core WebAssembly module"),
        (b"\0asm", "core WebAssembly module"),
    ],
)
def test_garbage_is_refused_and_not_kept(data: bytes, message: str, tmp_path: Path) -> None:
    store = ProgramStore(tmp_path)
    with pytest.raises(BadProgram, match=message):
        store.put(data, "garbage")
    assert store.all() == ()
    assert ProgramStore(tmp_path).all() == ()


def test_kinds() -> None:
    assert kind_of(SOURCE) == "python"
    assert kind_of(COMPONENT) == "component"


def test_a_program_beyond_the_bound_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadProgram, match="6 bytes, more than 5"):
        ProgramStore(tmp_path, max_bytes=5).put(b"123456", "big")


def test_processes_that_share_a_folder_keep_each_other_s_names(tmp_path: Path) -> None:
    one, other = ProgramStore(tmp_path), ProgramStore(tmp_path)
    first, second = one.put(b"x = 1", "one"), other.put(b"x = 2", "other")
    after = ProgramStore(tmp_path)
    assert (after.get("one").hash, after.get("other").hash) == (first.hash, second.hash)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '"x"', "[" * 100_000])
def test_damaged_names_are_left_out(text: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    program = ProgramStore(tmp_path).put(SOURCE, "name")
    (tmp_path / "programs" / "names.json").write_text(text)
    with caplog.at_level(logging.WARNING):
        store = ProgramStore(tmp_path)
    assert "damaged" in caplog.text
    assert store.get(program.hash).name == program.hash[:12]
    store.put(SOURCE, "name")
    assert json.loads((tmp_path / "programs" / "names.json").read_text()) == {"name": program.hash}


def test_a_damaged_program_is_left_out_until_it_is_uploaded_again(tmp_path: Path) -> None:
    program = ProgramStore(tmp_path).put(SOURCE, "name")
    damage(program.path)
    store = ProgramStore(tmp_path)
    with pytest.raises(UnknownName):
        store.get("name")
    store.put(SOURCE, "name")
    assert ProgramStore(tmp_path).get("name").source == SOURCE.decode()


def test_a_damaged_component_is_repaired_by_an_upload(tmp_path: Path) -> None:
    program = ProgramStore(tmp_path).put(COMPONENT, "name")
    damage(program.path)
    ProgramStore(tmp_path).put(COMPONENT, "name")
    assert program.path.read_bytes() == COMPONENT


def test_other_files_in_the_folder_are_left_alone(tmp_path: Path) -> None:
    ProgramStore(tmp_path).put(SOURCE, "name")
    (tmp_path / "programs" / "tmpabc").write_bytes(b"left by a crash")
    (tmp_path / "programs" / "notes.py").write_bytes(b"no program")
    assert [program.name for program in ProgramStore(tmp_path).all()] == ["name"]


def test_a_failed_write_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = ProgramStore(tmp_path)

    def full(*_: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(OSError, match="no space"):
        store.put(SOURCE, "name")
    assert list((tmp_path / "programs").iterdir()) == []


def test_a_compiled_component_is_loaded_and_a_damaged_one_is_not(tmp_path: Path) -> None:
    engine, path = new_engine(), tmp_path / "compiled" / "x.cwasm"
    assert try_load_compiled(engine, path) is None
    compile_component(engine, wat.inferlet(wat.SUCCESS), path)
    assert try_load_compiled(engine, path) is not None
    whole = path.read_bytes()
    for size in (0, 10, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        assert try_load_compiled(engine, path) is None
    path.write_bytes(b"no such file" * 1000)
    assert try_load_compiled(engine, path) is None
