"""Files that will be executed: compiled programs and kernels, kept in folders that only this user can write.

Both packages keep such files below the cache folder, so both use these rules. A *sealed* file carries the SHA-256 of
its content in its name, `STEM.SHA256SUFFIX`: it appears in one step, and is never used if a byte is missing or wrong.
"""

from __future__ import annotations

import fcntl
import grp
import hashlib
import logging
import os
import pwd
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from io import BufferedReader
from pathlib import Path

log = logging.getLogger("pie.cache")

TURN_SECONDS = 0.05
"""How long to wait between two questions for one's turn."""
LEFT_SECONDS = 3600.0
"""The age at which a temporary file or folder is one that a killed process has left."""
UNUSED_SECONDS = 30 * 86400.0
"""A file that nobody has looked for in this time is of another version of Pie, or of a program that is gone."""


class NotPrivate(ValueError):
    """A folder in which somebody else could put files. The message says what to do."""


def private_folder(path: Path) -> Path:
    """Makes the folder, with mode 0700, if there is none, and returns its real path, to be used from then on: a symlink
    on the way may change. Raises NotPrivate if it belongs to somebody else, or somebody else can write into it or
    replace it."""
    try:
        path.expanduser().mkdir(parents=True, exist_ok=True, mode=0o700)
        real = path.expanduser().resolve(strict=True)
        _check_folder(real, real.stat())
        for parent in real.parents:
            _check_parent(real, parent, parent.stat())
    except (OSError, RuntimeError) as error:  # RuntimeError: a loop of symlinks
        raise NotPrivate(f"the cache folder {path} cannot be used: {error}; choose another one: --cache-dir") from None
    return real


def folder_to_compile_in(path: Path) -> Path:
    """Makes a private folder, and removes from it what processes have left that were killed as they compiled there, and
    files that nobody uses any more."""
    real, now = private_folder(path), time.time()
    for found in real.iterdir():
        with suppress(OSError):  # another process is faster
            status = found.lstat()
            is_left = found.name.startswith("tmp") and status.st_mtime < now - LEFT_SECONDS
            if stat.S_ISDIR(status.st_mode):
                if is_left:
                    shutil.rmtree(found, ignore_errors=True)
            elif is_left or (max(status.st_atime, status.st_mtime) < now - UNUSED_SECONDS and not _is_held(found)):
                found.unlink()
    return real


@cache
def hold(path: Path) -> int:
    """Keeps a file from being removed as unused as long as this process lives."""
    handle = os.open(path, os.O_RDONLY)
    with suppress(OSError):
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    return handle


def _is_held(path: Path) -> bool:
    with queued(path) as has_it_alone:
        return not has_it_alone()


def _check_folder(folder: Path, status: os.stat_result) -> None:
    if not _is_own(status):
        raise NotPrivate(
            f"the cache folder {folder} belongs to another user (number {status.st_uid}), who could change the code "
            "that runs from it: choose a folder of your own: --cache-dir"
        )
    if _others_can_write(status):
        raise NotPrivate(
            f"others can write into the cache folder {folder}, and so change the code that runs from it: "
            f"chmod go-w '{folder}', or choose another one: --cache-dir"
        )


def _check_parent(folder: Path, parent: Path, status: os.stat_result) -> None:
    """A sticky parent, as /tmp, lets nobody rename what belongs to us."""
    if not (_is_own(status) or status.st_uid == 0) or (_others_can_write(status) and not status.st_mode & stat.S_ISVTX):
        raise NotPrivate(
            f"others can write into {parent}, and so replace the cache folder {folder}: chmod go-w '{parent}', or "
            "choose a cache folder elsewhere: --cache-dir"
        )


def _is_own(status: os.stat_result) -> bool:
    return status.st_uid == os.geteuid()


def _others_can_write(status: os.stat_result) -> bool:
    return bool(status.st_mode & stat.S_IWOTH) or (
        bool(status.st_mode & stat.S_IWGRP) and not _is_private_group(status.st_gid)
    )


def _is_private_group(number: int) -> bool:
    """Whether this is the user's own group, in which there is nobody else; with such groups, new folders are often
    writable by the group."""
    try:
        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(number)
    except KeyError:
        return False
    return number == user.pw_gid and group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}


def read_own_file(path: Path) -> bytes:
    """The content of a plain file that belongs to this user and that nobody else can write. Raises OSError:
    FileNotFoundError if there is none, PermissionError if it is something else."""
    with _open_own_file(path) as file:
        return file.read()


def _open_own_file(path: Path) -> BufferedReader:
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    status = os.fstat(handle)
    if not stat.S_ISREG(status.st_mode) or not _is_own(status) or _others_can_write(status):
        os.close(handle)
        raise PermissionError(f"{path} is not a plain file that only its owner, this user, can write")
    return os.fdopen(handle, "rb")


def _digest(path: Path) -> str:
    with _open_own_file(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_atomically(path: Path, data: bytes) -> None:
    """Writes a file, readable for this user only, so that a reader sees all of it or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle, temporary = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


# ---- one at a time ---------------------------------------------------------------------------------------------------


@contextmanager
def queued(folder: Path) -> Iterator[Callable[[], bool]]:
    """For what takes seconds to make: one at a time makes what is missing in the folder, and the others wait for it.
    Gives the question whether it is one's turn, which lasts to the end of the block or of the process. Where the file
    system has no such locks, it is everybody's."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        yield lambda: _lock(handle)
    finally:
        _unlock(handle)
        os.close(handle)


def _lock(handle: int) -> bool:
    """False: another has it."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return not isinstance(error, BlockingIOError)
    return True


def _unlock(handle: int) -> None:
    """Also for a process that was forked meanwhile, which has the handle too."""
    with suppress(OSError):
        fcntl.flock(handle, fcntl.LOCK_UN)


# ---- sealed files ----------------------------------------------------------------------------------------------------


def seal(unfinished: Path, folder: Path, stem: str, suffix: str) -> Path:
    """Moves a finished file into a folder of the same file system, under its sealed name."""
    os.chmod(unfinished, 0o600)
    path = folder / f"{stem}.{_digest(unfinished)}{suffix}"
    os.replace(unfinished, path)
    return path


def write_sealed(data: bytes, folder: Path, stem: str, suffix: str) -> Path:
    """Writes a sealed file."""
    path = folder / f"{stem}.{hashlib.sha256(data).hexdigest()}{suffix}"
    write_atomically(path, data)
    return path


def find_sealed(folder: Path, stem: str, suffix: str) -> Path | None:
    """The sealed file with this stem and suffix; None if there is none. One that is damaged or is not ours is removed,
    and the log says so."""
    for path in sorted(folder.glob(f"{stem}.*{suffix}")):
        try:
            digest = _digest(path)
        except OSError as error:
            log.warning("%s is not used and made anew: %s", path, error)
        else:
            if path.name == f"{stem}.{digest}{suffix}":
                with suppress(OSError):
                    os.utime(path, ns=(time.time_ns(), path.stat().st_mtime_ns))  # it is used
                return path
            log.warning("%s is damaged and made anew", path)
        remove(path)
    return None


def remove(path: Path) -> None:
    """Removes a file; nothing happens if it is not there, or is in use where the system forbids it then."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        log.warning("%s cannot be removed: %s", path, error)
