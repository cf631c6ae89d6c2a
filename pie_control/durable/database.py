"""The file of a state folder: how it is opened, whose it is, which tables it has.

FOLDER/state.sqlite3      with -wal and -shm beside it while a server runs
FOLDER/journal            what is not committed yet (journal.py)
FOLDER/programs/          uploaded programs (programs/store.py)
FOLDER/lock               held by the server that uses the folder; the kernel lets go of it when its process ends
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
import stat
from io import BufferedRandom
from pathlib import Path
from time import monotonic, sleep, time

from ..errors import ConfigError
from ..tenants.audit import HOUR, MOST_SUBJECT, Deed, Times
from .accounts.audit import write_of
from .commits import catch_up
from .journal import NAME as JOURNAL
from .journal import records_of

FILE = "state.sqlite3"
BUSY_SECONDS = 5.0
"""A writer waits as long for one of another process, such as `pie keys`."""
LOOK_SECONDS = 0.5
"""Longer than another command holds the lock that only looks whether a server has it."""

FREE_BYTES = 16 << 20
"""A file of which less is free is not worth writing anew."""

MIGRATIONS = (
    """
    CREATE TABLE counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT;
    CREATE TABLE inferlets (
        number INTEGER PRIMARY KEY, tenant TEXT NOT NULL, program TEXT NOT NULL, title TEXT NOT NULL,
        host INTEGER NOT NULL, parent TEXT, created REAL NOT NULL, status TEXT NOT NULL, ended REAL,
        cpu_seconds REAL NOT NULL DEFAULT 0, size INTEGER NOT NULL DEFAULT 0, result TEXT, error TEXT
    ) STRICT;
    CREATE INDEX inferlets_that_run ON inferlets (number) WHERE ended IS NULL;
    CREATE INDEX inferlets_by_size ON inferlets (number, size, ended) WHERE ended IS NOT NULL;
    CREATE TABLE lines (
        number INTEGER NOT NULL, place INTEGER NOT NULL, sequence INTEGER NOT NULL, time REAL NOT NULL,
        stream TEXT NOT NULL, text TEXT NOT NULL, PRIMARY KEY (number, place)
    ) STRICT, WITHOUT ROWID;
    """,
    """
    CREATE TABLE keys (
        id TEXT PRIMARY KEY, tenant TEXT NOT NULL, name TEXT NOT NULL, ending TEXT NOT NULL, may TEXT NOT NULL,
        created REAL NOT NULL, expires REAL, revoked REAL, digest BLOB NOT NULL UNIQUE
    ) STRICT;
    """,
    """
    ALTER TABLE keys ADD COLUMN requests_per_minute INTEGER;
    ALTER TABLE keys ADD COLUMN tokens_per_minute INTEGER;
    ALTER TABLE keys ADD COLUMN tokens_per_day INTEGER;
    CREATE TABLE usage (
        day INTEGER NOT NULL, tenant TEXT NOT NULL, key TEXT NOT NULL, requests INTEGER NOT NULL,
        prompt_tokens INTEGER NOT NULL, generated_tokens INTEGER NOT NULL, cpu_seconds REAL NOT NULL,
        PRIMARY KEY (day, tenant, key)
    ) STRICT, WITHOUT ROWID;
    """,
    """
    CREATE TABLE responses (
        tenant TEXT NOT NULL, id TEXT NOT NULL, inferlet TEXT NOT NULL, route TEXT NOT NULL, request_id TEXT NOT NULL,
        created REAL NOT NULL, ended REAL, background INTEGER NOT NULL, streamed INTEGER NOT NULL,
        previous TEXT NOT NULL, request BLOB NOT NULL, input TEXT NOT NULL, body TEXT NOT NULL, events BLOB NOT NULL,
        size INTEGER NOT NULL,
        PRIMARY KEY (tenant, id)
    ) STRICT;
    CREATE INDEX responses_by_size ON responses (tenant, ended, size);
    CREATE INDEX responses_by_end ON responses (ended);
    """,
    """
    CREATE TABLE audit (
        number INTEGER PRIMARY KEY, hour INTEGER NOT NULL, tenant TEXT NOT NULL, key TEXT NOT NULL,
        action TEXT NOT NULL, subject TEXT NOT NULL, first REAL NOT NULL, last REAL NOT NULL, count INTEGER NOT NULL,
        UNIQUE (hour, tenant, key, action, subject)
    ) STRICT;
    """,
    """
    CREATE TABLE programs (
        owner TEXT NOT NULL, program TEXT NOT NULL, kept TEXT NOT NULL, PRIMARY KEY (owner, program)
    ) STRICT;
    """,
    """
    ALTER TABLE responses ADD COLUMN hidden INTEGER NOT NULL DEFAULT 0;
    CREATE INDEX responses_by_previous ON responses (tenant, previous) WHERE previous <> '';
    """,
    """
    ALTER TABLE keys ADD COLUMN cpu_seconds_per_hour INTEGER;
    """,
    """
    ALTER TABLE keys ADD COLUMN max_inferlets INTEGER;
    """,
    """
    CREATE TABLE response_uses (
        tenant TEXT NOT NULL, id TEXT NOT NULL, used REAL NOT NULL, PRIMARY KEY (tenant, id)
    ) STRICT, WITHOUT ROWID;
    INSERT INTO response_uses SELECT tenant, id, coalesce(ended, created) FROM responses;
    CREATE TRIGGER response_goes AFTER DELETE ON responses
    BEGIN DELETE FROM response_uses WHERE tenant = old.tenant AND id = old.id; END;
    DROP INDEX responses_by_size;
    CREATE INDEX responses_by_size ON responses (tenant, id, ended, size);
    """,
    """
    CREATE TABLE tenants (name TEXT PRIMARY KEY) STRICT, WITHOUT ROWID;
    """,
    """
    DROP INDEX inferlets_by_size;
    CREATE INDEX inferlets_by_size ON inferlets (tenant, number DESC, size, ended) WHERE ended IS NOT NULL;
    CREATE TRIGGER inferlet_goes AFTER DELETE ON inferlets
    BEGIN DELETE FROM lines WHERE number = old.number; END;
    """,
    """
    ALTER TABLE responses ADD COLUMN key TEXT NOT NULL DEFAULT '';
    """,
    """
    ALTER TABLE responses ADD COLUMN tries INTEGER NOT NULL DEFAULT 0;
    """,
)
"""What makes each version of the schema of the one before. `PRAGMA user_version` counts those that a file has had. A
statement ends with its line."""


def default_state_dir() -> Path:
    """Where `pie serve` keeps its state unless an option says otherwise. It may begin with ~: where the home folder is
    not known, a server that has another one needs none."""
    return Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state") / "pie"


def state_folder(given: str | None) -> Path:
    """The folder that a command means which names it, or not."""
    named = given or os.environ.get("PIE_STATE")
    return Path(named or default_state_dir()).expanduser()


def own_folder(folder: Path) -> Path:
    """Makes the folder, readable for this user only, if there is none. Raises ConfigError if it cannot be used, or
    others can write into it."""
    try:
        folder.expanduser().mkdir(parents=True, exist_ok=True, mode=0o700)
        real = folder.expanduser().resolve(strict=True)
        status = real.stat()
    except (OSError, RuntimeError) as error:
        raise ConfigError(f"the state folder {folder} cannot be used: {error}; {_OTHERWISE}") from None
    if status.st_uid != os.geteuid():
        raise ConfigError(
            f"the state folder {real} belongs to another user (number {status.st_uid}): be that user, as by "
            f"`sudo -u '#{status.st_uid}'`, or {_OTHERWISE}"
        )
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise ConfigError(f"others can write into the state folder {real}: chmod go-w '{real}', or {_OTHERWISE}")
    return real


_OTHERWISE = "choose another one by --state FOLDER, or serve without: --state none"


def hold(folder: Path) -> BufferedRandom:
    """Takes the folder for this process, until the file is closed. Raises ConfigError if another process has it."""
    try:
        file = os.fdopen(os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600), "r+b")
    except OSError as error:
        raise ConfigError(f"the state folder {folder} cannot be written: {error}; {_OTHERWISE}") from None
    try:
        _lock(file)
    except OSError:
        holder = file.read(20).decode(errors="replace").strip() or "unknown"
        file.close()
        raise ConfigError(
            f"another server (process {holder}) uses the state folder {folder}: stop it, or {_OTHERWISE}"
        ) from None
    try:
        os.ftruncate(file.fileno(), 0)
        os.pwrite(file.fileno(), f"{os.getpid()}\n".encode(), 0)
    except OSError as error:
        file.close()
        raise unusable(folder / "lock", error) from None
    return file


def _lock(file: BufferedRandom) -> None:
    """Waits a moment for a command that looks whether a server is there. Raises OSError if that is not all."""
    until = monotonic() + LOOK_SECONDS
    while True:
        try:
            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if monotonic() > until:
                raise
            sleep(LOOK_SECONDS / 20)


def holder(folder: Path) -> int | None:
    """The process that holds the folder; None: none does, as far as can be seen."""
    try:
        with (folder / "lock").open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return int((folder / "lock").read_bytes() or b"0")
    except OSError:
        pass
    return None


def is_held(folder: Path, file: BufferedRandom) -> bool:
    """Whether the file that `hold` gave is still the one in the folder."""
    try:
        return os.path.samestat((folder / "lock").stat(), os.fstat(file.fileno()))
    except OSError:
        return False


def open_database(folder: Path, to_read: bool = False) -> sqlite3.Connection:
    """A connection that may write, for one thread at a time; the tables are those of this version. `to_read`: the file
    need not be one that can be written now, unless its tables are older. Raises ConfigError."""
    path = folder / FILE
    try:
        _make(path)
        connection = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        return _ready(connection, path, to_read)
    except (OSError, sqlite3.Error) as error:
        raise unusable(path, error) from None


def _make(path: Path) -> None:
    """Makes the file, readable for this user only, if there is none. One that is there is not opened: closing it would
    drop the locks on it of all connections of this process (POSIX), and another process that closes the file would
    take this one for gone, and delete the journal of SQLite under it."""
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))


def check_exists(folder: Path) -> None:
    """Raises ConfigError if there is no state in a folder."""
    try:
        (folder / FILE).stat()
    except FileNotFoundError:
        raise ConfigError(f"there is no state in {folder}: --state FOLDER says where it is") from None
    except OSError as error:
        raise unusable(folder / FILE, error) from None


def unusable(path: Path, error: Exception) -> ConfigError:
    """What an operator is told whose state cannot be read or written."""
    return ConfigError(f"the state in {path} cannot be used: {error}; {_OTHERWISE}")


def shrink(database: sqlite3.Connection) -> None:
    """Gives back to the disk what is free in the file, if that is most of it. The disk has to have room for the rest
    once more: where it has not, the file stays as it is."""
    names = "freelist_count", "page_count", "page_size"
    free, pages, size = (database.execute(f"PRAGMA {name}").fetchone()[0] for name in names)
    if free * size >= FREE_BYTES and 2 * free > pages:
        with contextlib.suppress(sqlite3.Error):
            database.execute("VACUUM")
            database.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def database_in_memory() -> sqlite3.Connection:
    """One with the same tables, that nobody else sees, and that goes with its process."""
    return _ready(sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False), Path(":memory:"))


def _ready(database: sqlite3.Connection, path: Path, to_read: bool = False) -> sqlite3.Connection:
    """The connection, once its tables are those of this version; it is closed if they cannot be."""
    try:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = NORMAL")
        if not to_read or _version(database) != len(MIGRATIONS):
            _migrate(database, path)
    except BaseException:
        database.close()
        raise
    return database


def _version(database: sqlite3.Connection) -> int:
    found: tuple[int] = database.execute("PRAGMA user_version").fetchone()
    return found[0]


def _migrate(database: sqlite3.Connection, path: Path) -> None:
    database.execute("BEGIN IMMEDIATE")  # which also finds out whether the file can be written
    version = _version(database)
    if version > len(MIGRATIONS):
        database.execute("ROLLBACK")
        raise ConfigError(
            f"the state in {path} was written by a newer version of Pie (schema {version}, this one knows "
            f"{len(MIGRATIONS)}): use that version, or {_OTHERWISE}"
        )
    for script in MIGRATIONS[version:]:
        for statement in filter(str.strip, script.split(";\n")):
            database.execute(statement)
    database.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
    database.execute("COMMIT")


def back_up(folder: Path, target: Path) -> None:
    """Writes all that the state has at one moment into a new file, also while a server uses it. Raises ConfigError."""
    path = folder.expanduser() / FILE
    check_exists(folder.expanduser())
    try:
        os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))  # an empty file is a database
    except FileExistsError:
        raise ConfigError(f"{target} exists already: name a new file") from None
    except OSError as error:
        raise ConfigError(f"{target} cannot be written: {error}") from None
    try:
        journal = folder.expanduser() / JOURNAL
        waiting = journal.read_bytes() if journal.exists() else b""  # first: what it has no more is in the file
        with contextlib.closing(sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None)) as database:
            database.execute("VACUUM INTO ?", (str(target),))
        with contextlib.closing(sqlite3.connect(target, isolation_level=None)) as copy:
            catch_up(copy, records_of(waiting))
    except BaseException as error:
        target.unlink(missing_ok=True)
        if not isinstance(error, (OSError, sqlite3.Error)):
            raise
        raise ConfigError(f"the state in {path} cannot be copied to {target}: {error}") from None


STAYS: dict[str, tuple[str, ...]] = {
    "keys": (),
    "usage": ("requests", "prompt_tokens", "generated_tokens", "cpu_seconds"),
    "audit": ("last", "count"),
}
"""Tables that a restored state has of the one before, too, and columns of them that only grow: of a row that both have,
the larger number counts; where there are none, the row of the one before."""


def put_back(folder: Path, copy: Path) -> bool:
    """Puts a copy that `back_up` has written in place of what a state has, which must have no server. What the journal
    has beyond the copy comes with the next server, and what STAYS is not lost: no key that was revoked since the copy
    is valid again. The audit log tells of it. False: what STAYS cannot be read. Raises ConfigError, and then changes
    nothing."""
    with hold(own_folder(folder)):
        path = folder.expanduser() / FILE
        made = path.with_name(f"{FILE}.new")
        try:
            made.unlink(missing_ok=True)
            uri = f"{copy.resolve(strict=True).as_uri()}?mode=ro"
            with contextlib.closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as database:
                found = database.execute("PRAGMA quick_check(1)").fetchone()[0]
                if found != "ok" or not 0 < _version(database) <= len(MIGRATIONS):
                    raise OSError("it is damaged" if found != "ok" else "it is no state of this version of Pie")
                os.close(os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
                database.execute("VACUUM INTO ?", (str(made),))
            with contextlib.closing(sqlite3.connect(made, isolation_level=None)) as database:
                _migrate(database, made)
                kept = _keep(database, path)
                now = time()
                done = Deed(int(now // HOUR), "", "", "restore the state", str(copy)[:MOST_SUBJECT])
                database.execute(*write_of(done, Times(now, now)))
            for ending in ("-wal", "-shm"):  # they belong to the file that goes
                path.with_name(path.name + ending).unlink(missing_ok=True)
            os.replace(made, path)
            return kept
        except (OSError, sqlite3.Error) as error:
            made.unlink(missing_ok=True)
            raise ConfigError(f"{copy} cannot be put into {path}: {error}") from None


def _keep(database: sqlite3.Connection, path: Path) -> bool:
    """Puts what STAYS of a state into another one; whether it can be read."""
    if not path.exists():
        return True
    try:
        database.execute("ATTACH ? AS before", (str(path),))
        for table, grows in STAYS.items():
            schemas = [database.execute(f"PRAGMA {one}.table_info({table})") for one in ("main", "before")]
            common = set.intersection(*({row[1] for row in schema} for schema in schemas)) - {"number"}
            if not common:  # the state is of an older version
                continue
            columns = ", ".join(sorted(common))
            changes = ", ".join(f"{one} = max({one}, excluded.{one})" for one in grows)
            database.execute(
                f"INSERT {'' if grows else 'OR REPLACE'} INTO {table} ({columns}) "
                f"SELECT {columns} FROM before.{table} WHERE true"
                + (f" ON CONFLICT DO UPDATE SET {changes}" if grows else "")
            )
    except sqlite3.Error:
        return False
    return True
