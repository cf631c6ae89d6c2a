"""Instances of the Python guest, made ahead of a launch or not."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from pie_control import host_api
from pie_control.errors import ConfigError
from pie_control.programs import native, python_guest
from pie_control.programs.host import python_guests
from pie_control.programs.host.programs import HostPrograms
from pie_control.programs.host.python_guests import PythonGuests
from pie_control.programs.host.python_source import Compilation
from pie_control.programs.program_host import SourceText
from pie_control.programs.python_guest import compiled_guest
from pie_control.programs.warm_pool import QUIET_SECONDS, WarmPool
from pie_control.sandbox.fibers import Step
from pie_inference.options.cache_files import write_sealed
from tests.helpers.guard import HANG_SECONDS

DRAWS = "import random, secrets\ndef main(args):\n    return [random.random(), random.random(), secrets.token_hex(8)]\n"


class Runs(Compilation):
    """The owner of an instance that runs a program to its result."""

    def __init__(self) -> None:
        super().__init__("", "")
        self.arguments = []
        self.source: SourceText | None = None


def bring(programs: HostPrograms, text: str) -> None:
    """The program `draws` has this text."""
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(programs.compile("draws", "draws.py", text, Path(folder), "draws"))


@pytest.fixture
def programs(guest_cache: Path) -> Iterator[HostPrograms]:
    programs = HostPrograms(host_api.contract(), 64 << 20, WarmPool(3, 6))
    programs.start(asyncio.run(compiled_guest(guest_cache)))
    bring(programs, DRAWS)
    yield programs
    programs.close()


@pytest.fixture
def guests(programs: HostPrograms) -> PythonGuests:
    return programs._guests


def result_of(programs: HostPrograms) -> list[object]:
    owner = Runs()
    instance = programs.instance("draws", "draws.py", owner)
    while instance.step() is Step.PREEMPTED:
        pass
    assert instance.outcome() is None
    instance.close()
    found: list[object] = json.loads(owner.code)
    return found


def make_all_ahead(programs: HostPrograms) -> None:
    while programs.warm_one():
        pass


def test_instances_begin_before_any_rehearses(
    programs: HostPrograms, guests: PythonGuests, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(python_guests, "MOST_REHEARSED", 2)
    stages: list[tuple[int, int]] = []
    while programs.warm_one():
        if guests._at_work is None:
            stages.append((len(guests._begun), len(guests._rehearsed)))
    assert stages == [(1, 0), (2, 0), (3, 0), (2, 1), (1, 2)]
    assert programs.warm == 3


def test_a_launch_takes_the_best_that_waits(
    programs: HostPrograms, guests: PythonGuests, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(python_guests, "MOST_REHEARSED", 1)
    make_all_ahead(programs)
    left = []
    for _ in range(4):
        result_of(programs)
        left.append((len(guests._rehearsed), len(guests._begun)))
    assert left == [(0, 2), (0, 1), (0, 0), (0, 0)]


def copied_pages(programs: HostPrograms) -> int:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    result_of(programs)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


@pytest.mark.skipif(sys.platform != "linux", reason="other systems count pages otherwise")
def test_a_launch_copies_few_pages_of_what_was_made_ahead(
    programs: HostPrograms, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(python_guests, "MOST_REHEARSED", 0)
    bring(programs, "async def main(args):\n    return 1\n")
    make_all_ahead(programs)
    assert max(copied_pages(programs) for _ in range(3)) < copied_pages(programs) / 3


@pytest.mark.skipif(sys.platform != "linux", reason="other systems count pages otherwise")
def test_instances_share_the_snapshot(programs: HostPrograms) -> None:
    """wasmtime copies a snapshot that is mostly holes for each instance, all 29 MB."""

    def copied() -> int:
        return int(Path("/proc/self/status").read_text().split("RssAnon:")[1].split()[0])

    before = copied()
    make_all_ahead(programs)
    assert programs.warm == 3
    assert (copied() - before) / 3 < 8 << 10


def test_each_instance_draws_other_numbers_whenever_it_was_made(
    programs: HostPrograms, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are copies of one snapshot, generator of random numbers included."""
    monkeypatch.setattr(python_guests, "MOST_REHEARSED", 1)
    make_all_ahead(programs)
    draws = [value for _ in range(5) for value in result_of(programs)]
    assert len(set(map(str, draws))) == 15


def test_programs_have_the_seed_of_the_standard_library(programs: HostPrograms) -> None:
    text = (
        "import random\ndef main(args):\n    random.seed(7); a = random.random()\n"
        "    random.seed(); b = random.random()\n    return [a, b, random.seed.__qualname__]\n"
    )
    bring(programs, text)
    first, second = result_of(programs), result_of(programs)
    assert first[0] == second[0] == 0.32383276483316237
    assert first[1] != second[1]
    assert first[2] == "Random.seed"


def test_the_objects_of_the_snapshot_are_immortal_and_those_of_a_program_are_not(programs: HostPrograms) -> None:
    text = (
        "import sys, asyncio, inferlet_sdk\ndef main(args):\n    new = object()\n"
        "    lasting = [inferlet_sdk.Context, inferlet_sdk.Context.fill.__code__, asyncio.sleep, sys.modules]\n"
        "    return [sys.getrefcount(one) >= 5 << 28 for one in (*lasting, new)]\n"
    )
    bring(programs, text)
    assert result_of(programs) == [True, True, True, True, False]


def test_the_pool_grows_to_a_burst_and_shrinks_after_quiet_minutes(
    programs: HostPrograms, guests: PythonGuests, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(python_guests, "MOST_REHEARSED", 1)
    now = 0.0
    monkeypatch.setattr(guests, "_clock", lambda: now)
    make_all_ahead(programs)
    assert (programs.warm, programs.warm_wanted) == (3, 3)
    for _ in range(5):
        result_of(programs)
    assert (programs.warm, programs.warm_wanted, programs.is_warm) == (0, 5, False)
    make_all_ahead(programs)
    assert (programs.warm, programs.is_warm) == (5, True)
    now = 2 * QUIET_SECONDS
    left = []
    while programs.warm_one():
        left.append((len(guests._rehearsed), len(guests._begun)))
    assert left == [(1, 3), (1, 2)]  # one at a time, and the best stay


def test_none_is_made_without_room_but_those_too_many_are_freed(programs: HostPrograms, guests: PythonGuests) -> None:
    assert not programs.warm_one(has_room=False)
    assert programs.warm == 0
    make_all_ahead(programs)
    result_of(programs)
    assert not programs.warm_one(has_room=False)
    assert programs.warm == 2
    while programs.drop_one():
        pass
    assert programs.warm == 0
    assert all(not waiting for waiting in (guests._begun, guests._rehearsed))


def test_what_is_half_made_is_freed(programs: HostPrograms, guests: PythonGuests) -> None:
    make_all_ahead(programs)
    result_of(programs)
    while guests._at_work is None:
        assert programs.warm_one()
    programs.close()
    assert programs.warm == 0
    assert guests._at_work is None
    programs.close()


def test_before_the_start_there_are_no_guests(tmp_path: Path) -> None:
    programs = HostPrograms(host_api.contract(), 64 << 20, WarmPool(3, 6))
    asyncio.run(programs.load("draws", write_sealed(b"", tmp_path, "draws", ".code")))
    assert not programs.warm_one()
    assert programs.warm == 0
    with pytest.raises(ConfigError, match="not started"):
        programs.instance("draws", "draws.py", Runs())
    programs.close()


TOOL = """
import json, os, sys, time
with open(sys.argv[0] + ".part", "w") as file:
    json.dump([os.getpid(), os.listdir(sys.argv[sys.argv.index("-p") + 1])], file)
os.rename(file.name, sys.argv[0] + ".said")
time.sleep(3600)
"""


def test_the_guest_is_built_of_the_sdk_alone_by_a_tool_that_ends_with_who_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said, python = tmp_path / "python.said", tmp_path / "python"
    python.write_text(f"#!{sys.executable}{TOOL}")
    python.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(python))
    (folder := tmp_path / "guest").mkdir()

    async def give_up() -> None:
        building = asyncio.create_task(python_guest.build_guest(folder))
        async with asyncio.timeout(HANG_SECONDS):
            while not said.exists():
                await asyncio.sleep(0.01)
        building.cancel()
        await asyncio.gather(building, return_exceptions=True)

    asyncio.run(give_up())
    process, given = json.loads(said.read_text())
    assert given == ["inferlet_sdk"]
    assert not list(folder.iterdir())
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


def test_of_many_servers_that_start_at_once_one_compiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[Path] = []

    async def compile_to_file(data: bytes, folder: Path, stem: str) -> Path:
        await asyncio.sleep(0)
        compiled.append(write_sealed(data, folder, stem, native.SUFFIX))
        return compiled[-1]

    async def start_all() -> list[Path]:
        return await asyncio.gather(*(compiled_guest(tmp_path) for _ in range(3)))

    async def build_guest(_: Path) -> bytes:
        return b"guest"

    monkeypatch.setattr(python_guest, "build_guest", build_guest)
    monkeypatch.setattr(native, "compile_to_file", compile_to_file)
    assert asyncio.run(start_all()) == compiled * 3
