"""Which programs are ready on which hosts, with hosts that only take notes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from pie_control.errors import BadProgram, Overloaded, UnknownName
from pie_control.programs.compiling import ProgramCompiler
from pie_control.programs.library import ProgramLibrary
from pie_control.programs.native import NativeCompiler
from pie_control.programs.prepared import PreparedPrograms
from pie_control.programs.program_host import CODE_SUFFIX
from pie_control.programs.store import ProgramInfo, ProgramStore
from pie_inference.options.cache_files import write_sealed
from tests.helpers.guard import HANG_SECONDS

COMPONENT = b"\0asm\x0d\x00\x01\x00"


class NotingHost:
    """A `ProgramHost`: what it has, and what it compiled."""

    def __init__(self) -> None:
        self.programs: dict[str, object] = {}
        self.compiled: list[str] = []
        self.linked: list[str] = []
        self.fails: Exception | None = None
        self.loaded: list[str] = []
        self.may_link = asyncio.Event()
        self.may_link.set()
        self.on_ready: Callable[[str], None] = lambda program: None

    async def compile(self, program: str, name: str, text: str, folder: Path, stem: str) -> None:
        self.compiled.append(text)
        await asyncio.sleep(0)
        if self.fails:
            raise self.fails
        write_sealed((code := f"code of {text}").encode(), folder, stem, CODE_SUFFIX)
        self.programs[program] = code
        self.on_ready(program)

    async def load(self, program: str, path: Path) -> None:
        self.loaded.append(program)
        self.programs[program] = path.read_text()
        self.on_ready(program)

    async def link(self, program: str, path: Path) -> None:
        await self.may_link.wait()
        if self.fails:
            raise self.fails
        if not path.exists():
            raise BadProgram("there is no such file")
        self.linked.append(program)
        self.programs[program] = path.read_bytes()
        self.on_ready(program)

    def forget(self, program: str) -> None:
        self.programs.pop(program, None)


class CopyingCompiler(NativeCompiler):
    """Its native code is the component."""

    def __init__(self) -> None:
        super().__init__()
        self.compiled: list[str] = []

    async def compile(self, data: bytes, folder: Path, stem: str, tenant: str) -> Path:
        self.compiled.append(stem)
        await asyncio.sleep(0)
        return write_sealed(data, folder, stem, ".cwasm")


class World:
    """A library with two hosts."""

    def __init__(self, folder: Path, most_bytes: int = 1 << 20) -> None:
        store = ProgramStore(folder)
        self.native = CopyingCompiler()
        prepared = PreparedPrograms(store, ProgramCompiler(store, self.native).bring, most_bytes)
        self.library = ProgramLibrary(store, prepared)
        self.one, self.two = NotingHost(), NotingHost()

    @property
    def hosts(self) -> tuple[NotingHost, NotingHost]:
        return self.one, self.two

    async def upload(self, data: bytes, name: str = "name") -> ProgramInfo:
        return await self.library.upload(data, name, self.one)


def check(body: Callable[[World], Awaitable[None]], folder: Path, most_bytes: int = 1 << 20) -> None:
    async def run() -> None:
        await asyncio.wait_for(body(World(folder, most_bytes)), HANG_SECONDS)

    asyncio.run(run())


def test_an_upload_beside_a_launch_of_what_was_deleted_brings_it_anew(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        program = (await world.upload(COMPONENT)).program
        world.two.may_link.clear()
        launch = asyncio.create_task(world.library.find(program, world.two))
        await asyncio.sleep(0)
        world.library.remove(program)
        upload = asyncio.create_task(world.library.upload(COMPONENT, "again", world.two))
        while program not in world.library._store._arriving:
            await asyncio.sleep(0)
        world.two.may_link.set()
        with pytest.raises(UnknownName):
            await launch
        assert (await upload).program == program
        assert world.library.all()[0].name == "again"
        assert program in world.two.programs

    check(body, tmp_path)


@pytest.mark.parametrize("data", [b"text", COMPONENT])
def test_a_program_comes_to_a_host_when_it_is_launched_there_and_is_compiled_once(data: bytes, tmp_path: Path) -> None:
    async def body(world: World) -> None:
        program = (await world.upload(data)).program
        assert program in world.one.programs
        assert world.two.programs == {}
        found = await asyncio.gather(*(world.library.find("name", world.two) for _ in range(5)))
        assert {each.hash for each in found} == {program}
        assert world.two.programs == world.one.programs
        assert len(world.one.compiled) + len(world.native.compiled) == 1
        assert world.two.compiled == []
        assert world.two.linked == world.one.linked
        assert world.two.loaded + world.two.linked == [program], "no code goes through this process"

    check(body, tmp_path)


def test_launches_on_two_hosts_at_once_compile_once(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        program = (await world.upload(b"text")).program
        for path in (tmp_path / "compiled").iterdir():
            path.unlink()
        world.library._prepared.forget(program)
        assert world.one.programs == {}
        await asyncio.gather(*(world.library.find(program, host) for host in (*world.hosts, *world.hosts)))
        assert world.one.compiled + world.two.compiled == [b"text".decode()] * 2, "at the upload, and once now"
        assert world.one.programs.keys() == world.two.programs.keys() == {program}

    check(body, tmp_path)


def test_what_is_deleted_or_makes_room_is_forgotten_by_all_hosts(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        first = (await world.upload(b"a" * 400, "first")).program
        second = (await world.upload(COMPONENT + b"b" * 400, "second")).program
        for name in ("first", "second"):
            await world.library.find(name, world.two)
        assert all(host.programs.keys() == {first, second} for host in world.hosts)
        third = (await world.upload(b"c" * 400, "third")).program
        assert world.one.programs.keys() == {second, third}
        assert world.two.programs.keys() == {second}
        world.library.remove("second")
        assert world.one.programs.keys() == {third}
        assert world.two.programs == {}
        await world.library.find("first", world.two)
        assert world.two.programs.keys() == {first}

    check(body, tmp_path, most_bytes=1000)


def test_a_lost_host_gets_its_programs_again(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        program = (await world.upload(b"text")).program
        world.library.lost(world.one)
        world.one.programs.clear()
        await world.library.find("name", world.one)
        assert world.one.programs.keys() == {program}
        assert world.one.compiled == ["text"]

    check(body, tmp_path)


def test_a_host_that_ends_meanwhile_loses_no_program(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        await world.upload(COMPONENT)
        world.two.fails = Overloaded("the application host ended: try again")
        with pytest.raises(Overloaded):
            await world.library.find("name", world.two)
        with pytest.raises(Overloaded):
            await world.library.upload(b"text", "other", world.two)
        assert [each.name for each in world.library.all()] == ["name"]
        world.two.fails = None
        await world.library.find("name", world.two)
        await world.library.upload(b"text", "other", world.two)

    check(body, tmp_path)


def test_a_component_that_a_host_refuses_leaves_nothing(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        world.one.fails = BadProgram("imports what it may not")
        with pytest.raises(BadProgram, match="imports what it may not"):
            await world.upload(COMPONENT)
        assert world.library.all() == ()
        assert list((tmp_path / "compiled").iterdir()) == []
        assert {path.name for path in (tmp_path / "programs").iterdir()} <= {"owners.json"}

    check(body, tmp_path)


def test_a_program_that_is_deleted_while_a_host_links_it_is_on_no_host(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        await world.upload(COMPONENT)
        world.two.may_link.clear()
        launching = asyncio.create_task(world.library.find("name", world.two))
        await asyncio.sleep(0.05)
        world.library.remove("name")
        assert world.one.programs == {}
        world.two.may_link.set()
        with pytest.raises(UnknownName, match="was deleted"):
            await launching
        assert world.two.programs == {}
        assert list((tmp_path / "compiled").iterdir()) == []

    check(body, tmp_path)


@pytest.mark.parametrize("data", [b"text", COMPONENT])
def test_a_program_is_prepared_again_if_its_host_is_lost_meanwhile(data: bytes, tmp_path: Path) -> None:
    async def body(world: World) -> None:
        lost = iter([True, True])

        def answered(program: str) -> None:
            if next(lost, False):  # it has answered, and nobody has looked at that
                world.two.programs.clear()
                world.library.lost(world.two)

        world.two.on_ready = answered
        program = (await world.upload(data)).program
        await world.library.find(program, world.two)
        assert program in world.two.programs

    check(body, tmp_path)
