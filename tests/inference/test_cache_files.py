"""Folders and files of code that will be executed: who may write them, and what is read of them."""

from __future__ import annotations

import errno
import fcntl
import grp
import hashlib
import os
import pwd
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pie_inference.options.cache_files import (
    LEFT_SECONDS,
    UNUSED_SECONDS,
    NotPrivate,
    find_sealed,
    folder_to_compile_in,
    hold,
    private_folder,
    queued,
    read_own_file,
    seal,
    write_atomically,
)

SOMEBODY_ELSE = 54321


def sealed(folder: Path, data: bytes, stem: str = "stem") -> Path:
    write_atomically(folder / "unfinished", data)
    return seal(folder / "unfinished", folder, stem, ".x")


def of_a_shared_group(monkeypatch: pytest.MonkeyPatch, *members: str) -> None:
    """All groups have these members beside the user whose own group they are."""
    name = pwd.getpwuid(os.geteuid()).pw_name
    monkeypatch.setattr(grp, "getgrgid", lambda _: SimpleNamespace(gr_name=name, gr_mem=[*members]))


# ---- folders ---------------------------------------------------------------------------------------------------------


def test_a_new_folder_is_for_its_owner_only(tmp_path: Path) -> None:
    folder = private_folder(tmp_path / "a" / "b")
    assert folder.stat().st_mode & 0o777 == 0o700
    assert private_folder(folder) == folder


def test_a_folder_that_others_can_only_read_is_accepted(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "old").chmod(0o755)
    assert private_folder(tmp_path / "old") == tmp_path / "old"


@pytest.mark.parametrize("mode", [0o777, 0o702, 0o1777])
def test_a_folder_that_others_can_write_is_refused(mode: int, tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(mode)
    with pytest.raises(NotPrivate, match=r"others can write into the cache folder .*open.*: chmod go-w .*--cache-dir"):
        private_folder(tmp_path / "open")


def test_a_folder_of_somebody_else_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: SOMEBODY_ELSE)
    with pytest.raises(NotPrivate, match=r"belongs to another user \(number \d+\).*--cache-dir"):
        private_folder(tmp_path)


def test_a_parent_that_others_can_write_must_be_sticky(tmp_path: Path) -> None:
    parent = tmp_path / "parent"
    (parent / "cache").mkdir(parents=True, mode=0o700)
    parent.chmod(0o1777)
    assert private_folder(parent / "cache") == parent / "cache"
    parent.chmod(0o777)
    with pytest.raises(NotPrivate, match=r"others can write into .*parent, and so replace the cache folder"):
        private_folder(parent / "cache")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_parent_of_somebody_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "theirs" / "cache").mkdir(parents=True)
    os.chown(tmp_path / "theirs", SOMEBODY_ELSE, SOMEBODY_ELSE)
    with pytest.raises(NotPrivate, match=r"theirs, and so replace the cache folder"):
        private_folder(tmp_path / "theirs" / "cache")


def test_the_target_of_a_symlink_counts_and_is_what_is_used(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "target")
    assert private_folder(tmp_path / "link" / "cache") == tmp_path / "target" / "cache"
    (tmp_path / "target").chmod(0o777)
    with pytest.raises(NotPrivate, match="target"):
        private_folder(tmp_path / "link")


@pytest.mark.parametrize("kind", ["file", "loop", "dangling"])
def test_what_is_no_folder_is_refused(kind: str, tmp_path: Path) -> None:
    if kind == "file":
        (tmp_path / "x").touch()
    else:
        (tmp_path / "x").symlink_to(tmp_path / ("x" if kind == "loop" else "nowhere/at/all"))
    with pytest.raises(NotPrivate, match=r"cannot be used: .*--cache-dir"):
        private_folder(tmp_path / "x")


def test_the_users_own_group_may_write_and_a_shared_one_may_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.chown(tmp_path, -1, pwd.getpwuid(os.geteuid()).pw_gid)
    tmp_path.chmod(0o770)
    of_a_shared_group(monkeypatch)
    assert private_folder(tmp_path) == tmp_path
    of_a_shared_group(monkeypatch, "mallory")
    with pytest.raises(NotPrivate, match="chmod go-w"):
        private_folder(tmp_path)


# ---- files -----------------------------------------------------------------------------------------------------------


def test_only_plain_files_of_ones_own_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_atomically(tmp_path / "good", b"data")
    assert read_own_file(tmp_path / "good") == b"data"
    (tmp_path / "link").symlink_to(tmp_path / "good")
    (tmp_path / "open").write_bytes(b"")
    (tmp_path / "open").chmod(0o666)
    os.mkdir(tmp_path / "folder")
    for name in ("link", "open", "folder"):
        with pytest.raises(OSError):  # noqa: PT011  (each system has a number of its own for it)
            read_own_file(tmp_path / name)
    with pytest.raises(FileNotFoundError):
        read_own_file(tmp_path / "absent")
    monkeypatch.setattr(os, "geteuid", lambda: SOMEBODY_ELSE)
    with pytest.raises(PermissionError, match="this user"):
        read_own_file(tmp_path / "good")


def test_a_sealed_file_is_found_and_carries_its_hash(tmp_path: Path) -> None:
    path = sealed(tmp_path, b"content")
    assert path.name == f"stem.{hashlib.sha256(b'content').hexdigest()}.x"
    assert find_sealed(tmp_path, "stem", ".x") == path
    assert find_sealed(tmp_path, "other", ".x") is None
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


@settings(max_examples=50, deadline=None)
@given(content=st.binary(min_size=1, max_size=200), data=st.data())
def test_a_sealed_file_with_any_change_is_not_found(
    content: bytes, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("sealed")
    path = sealed(folder, content)
    changed = data.draw(st.binary(max_size=200).filter(lambda other: other != content))
    path.write_bytes(changed)
    assert find_sealed(folder, "stem", ".x") is None
    assert not path.exists(), "a damaged file is removed, so that it is told once"


def test_a_foreign_file_beside_a_good_one_changes_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = sealed(tmp_path, b"good")
    (tmp_path / f"stem.{'0' * 64}.x").write_bytes(b"foreign")
    (tmp_path / f"stem.{'00' * 31}ff.x").symlink_to(path)
    assert find_sealed(tmp_path, "stem", ".x") == path
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]
    assert list(tmp_path.iterdir()) == [path]


# ---- one at a time ---------------------------------------------------------------------------------------------------


def test_one_at_a_time_has_its_turn(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    with queued(tmp_path) as first, queued(tmp_path) as second, queued(tmp_path / "other") as elsewhere:
        assert [first(), second(), elsewhere(), first()] == [True, False, True, True]
    with queued(tmp_path) as third:
        assert third()
    assert [path.name for path in tmp_path.iterdir()] == ["other"]


def test_a_turn_ends_however_it_is_left(tmp_path: Path) -> None:
    def fail() -> None:
        with queued(tmp_path) as first:
            assert first()
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    with queued(tmp_path) as second:
        assert second()


def test_without_locks_it_is_everybodys_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with queued(tmp_path) as first, queued(tmp_path) as second:
        assert first()
        assert second()


def test_what_a_killed_compiler_has_left_goes_after_an_hour(tmp_path: Path) -> None:
    folder = folder_to_compile_in(tmp_path)
    for name, age in (("tmpold", 2 * LEFT_SECONDS), ("tmpnew", 0.0)):
        (folder / name).mkdir()
        (folder / name / "guest.wasm").touch()
        os.utime(folder / name, (time.time() - age,) * 2)
    for name, age in (("tmp", 0.0), ("tmp123", 2 * LEFT_SECONDS)):
        (folder / name).touch()
        os.utime(folder / name, (time.time() - age,) * 2)
    assert sorted(path.name for path in folder_to_compile_in(tmp_path).iterdir()) == ["tmp", "tmpnew"]


def test_what_nobody_has_used_for_a_month_goes_unless_a_process_has_it(tmp_path: Path) -> None:
    folder = folder_to_compile_in(tmp_path)
    paths = [sealed(folder, name.encode(), name) for name in ("held", "unused", "used")]
    for path in paths:
        os.utime(path, (time.time() - 2 * UNUSED_SECONDS,) * 2)
    hold(paths[0])
    assert find_sealed(folder, "used", ".x") == paths[2]
    assert sorted(folder_to_compile_in(tmp_path).iterdir()) == [paths[0], paths[2]]
