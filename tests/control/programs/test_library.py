"""Uploading, launching and deleting programs, in a server of their own."""

from __future__ import annotations

import asyncio
import errno
import logging
import shutil
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest
import wasmtime

import tests.helpers.wat as wat
from pie_control.errors import BadProgram, BadRequest, ConfigError, Overloaded, StorageFull, UnknownName
from pie_control.programs import library, prepared, python_guest
from pie_control.programs.host import python_source
from pie_control.programs.native import NativeCompiler
from pie_control.programs.store import Program, ProgramStore
from pie_control.sandbox.fibers import Instance, Step
from pie_control.server_api import ServerApi
from pie_control.tenants.tenant import Standing, Tenant
from pie_control.testing.fake_model import FakeModel
from pie_control.testing.in_process import InProcessClient
from tests.helpers import bombs
from tests.helpers.guard import HANG_SECONDS
from tests.helpers.processes import compilers
from tests.helpers.servers import Listener, cache_with_guest, started

WAITS = b"async def main(args):\n    return await args.receive()\n"


def full(*_: object) -> None:
    raise OSError(errno.ENOSPC, "no space left on device", "/a/path/of/the/server")


@pytest.fixture
def cache(tmp_path: Path, guest_cache: Path) -> Path:
    return cache_with_guest(tmp_path, guest_cache)


def on_server(cache: Path, body: Callable[[ServerApi], Awaitable[None]], **options: Any) -> None:
    async def check() -> None:
        async with serving(cache, **options) as server, asyncio.timeout(HANG_SECONDS):
            await body(server)

    asyncio.run(check())


@asynccontextmanager
async def serving(cache: Path, **options: Any) -> AsyncIterator[ServerApi]:
    async with started(cache, InProcessClient(FakeModel()), **{"warm_pool": 0, **options}) as server:
        yield server


def returning(value: str) -> bytes:
    return f"def main(args):\n    return {value!r}\n".encode()


def component(*arguments: Any, **more: Any) -> bytes:
    return bytes(wasmtime.wat2wasm(wat.inferlet(*arguments, **more)))


async def result_of(server: ServerApi, program: str) -> str | None:
    listener = Listener()
    await server.launch(program, listener=listener)
    ended = await listener.ended
    assert ended.status == "finished", ended.error
    return ended.result


def files(cache: Path) -> set[str]:
    """What lies in the folder beside the guest."""
    found = {path.name for part in ("programs", "compiled") for path in (cache / part).iterdir()}
    return {name for name in found if name != "owners.json"}


def compiled(cache: Path, program: str) -> list[Path]:
    return list((cache / "compiled").glob(f"{program}-*"))


# ---- names -----------------------------------------------------------------------------------------------------------


def test_nobody_takes_over_the_default_name_of_a_program(cache: Path) -> None:
    async def body(server: ServerApi) -> None:
        good = await server.upload(returning("good"), "mine")
        for length in (8, 12, 16, 64):
            with pytest.raises(BadRequest, match="looks like the hash"):
                await server.upload(returning("evil"), good.program[:length])
            assert await result_of(server, good.program[:length]) == '"good"'
        newer = await server.upload(returning("newer"), "mine")
        assert newer.replaced == good.program
        assert await result_of(server, "mine") == '"newer"'
        assert await result_of(server, good.program) == '"good"'

    on_server(cache, body)


# ---- deleting --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", [WAITS, component(*wat.ECHO)])
def test_a_deleted_program_goes_on_where_it_runs_and_can_no_longer_be_launched(data: bytes, cache: Path) -> None:
    async def body(server: ServerApi) -> None:
        before = files(cache)
        program = await server.upload(data, "name")
        listener = Listener()
        inferlet = await server.launch("name", listener=listener)
        await asyncio.sleep(0.05)
        assert server.remove_program("name").program == program.program
        assert files(cache) == before
        assert server.programs() == ()
        for reference in ("name", program.program, program.program[:12]):
            with pytest.raises(UnknownName):
                await server.launch(reference)
            with pytest.raises(UnknownName):
                server.remove_program(reference)
        inferlet.send("still here")
        ended = await listener.ended
        assert (ended.status, "still here" in (ended.result or "")) == ("finished", True)
        await server.upload(data, "name")
        assert (await server.launch("name")).program.hash == program.program

    on_server(cache, body)


def test_a_program_that_is_deleted_while_it_is_prepared_leaves_nothing(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compile = NativeCompiler.compile

    async def body(server: ServerApi) -> None:
        compiled_it, deleted = asyncio.Event(), asyncio.Event()

        async def slowly(self: NativeCompiler, *given: Any) -> Path:
            path = await compile(self, *given)
            compiled_it.set()
            await deleted.wait()
            return path

        before = files(cache)
        data = component(*wat.ECHO, data="deleted meanwhile")
        program = (await server.upload(data, "name")).program
        for path in compiled(cache, program):
            path.unlink()
        server._library._prepared.forget(program)  # as if it had not been launched for long
        monkeypatch.setattr(NativeCompiler, "compile", slowly)
        launching = asyncio.create_task(server.launch("name"))
        await compiled_it.wait()
        server.remove_program("name")
        deleted.set()
        with pytest.raises(UnknownName, match="was deleted"):
            await launching
        assert files(cache) == before

    on_server(cache, body)


def test_a_program_that_another_tenant_deletes_while_it_arrives_is_kept(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written, deleted = threading.Event(), threading.Event()
    write = ProgramStore.write

    def slowly(self: ProgramStore, program: Program, data: bytes) -> None:
        write(self, program, data)
        written.set()
        assert deleted.wait(HANG_SECONDS)

    async def body(server: ServerApi) -> None:
        programs = server._library
        await programs.upload(returning("shared"), "mine", server._hosts.all[0].programs, "ada")
        monkeypatch.setattr(ProgramStore, "write", slowly)
        arriving = asyncio.create_task(programs.upload(returning("shared"), "", server._hosts.all[0].programs))
        assert await asyncio.to_thread(written.wait, HANG_SECONDS)
        programs.remove("mine", "ada")
        deleted.set()
        assert await result_of(server, (await arriving).program) == '"shared"'
        programs._prepared.forget((await arriving).program)
        assert await result_of(server, (await arriving).program) == '"shared"'

    on_server(cache, body)


# ---- quotas ----------------------------------------------------------------------------------------------------------


def test_uploads_beyond_the_quota_are_refused_and_leave_nothing(cache: Path) -> None:
    async def body(server: ServerApi) -> None:
        for number in range(3):
            await server.upload(returning(str(number)), f"name {number}")
        before = files(cache)
        for data in (returning("more"), component(wat.SUCCESS)):
            with pytest.raises(StorageFull, match="delete some first"):
                await server.upload(data, "more")
        assert files(cache) == before
        server.remove_program("name 1")
        await server.upload(returning("more"), "more")

    on_server(cache, body, max_programs=3)


def test_programs_that_run_make_no_room(cache: Path) -> None:
    async def body(server: ServerApi) -> None:
        waits = await server.upload(b"async def main(args):\n    await args.receive()\n")
        await server.launch(waits.program)
        later = await server.upload(returning("later"))
        newest = await server.upload(returning("newest"))
        assert [each.program for each in server.programs()] == [waits.program, newest.program]
        assert not [name for name in files(cache) if later.program in name]

    on_server(cache, body, max_programs=2)


def test_native_code_counts(cache: Path) -> None:
    """A kilobyte may become many megabytes."""

    async def body(server: ServerApi) -> None:
        before = files(cache)
        with pytest.raises(StorageFull, match="max-stored-program-bytes"):
            await server.upload(component(wat.SUCCESS), "small")
        assert files(cache) == before

    on_server(cache, body, max_stored_program_bytes=len(component(wat.SUCCESS)) + 1000)


def test_a_tenant_may_keep_what_its_operator_says(cache: Path) -> None:
    async def body(server: ServerApi) -> None:
        few, many = server.of(Standing(Tenant("few", max_programs=1))), server.of(Standing(Tenant("many")))
        await few.upload(returning("1"))
        await few.upload(returning("2"), "named")  # the one without a name makes room
        with pytest.raises(StorageFull, match="you keep 1 programs"):
            await few.upload(returning("1"))
        for number in range(2):
            await many.upload(returning(str(number)))
        few.use(Standing(Tenant("few", max_programs=5, max_stored_program_bytes=1)))
        with pytest.raises(StorageFull, match="bytes of programs"):
            await few.upload(returning("3"))
        few.use(Standing(Tenant("few")))
        await few.upload(returning("3"))

    on_server(cache, body)


def test_uploads_at_once_do_not_exceed_the_quota(cache: Path) -> None:
    async def body(server: ServerApi) -> None:
        uploads = [server.upload(returning(str(number)), str(number)) for number in range(6)]
        answers = await asyncio.gather(*uploads, return_exceptions=True)
        assert sum(isinstance(answer, StorageFull) for answer in answers) == 4
        assert len(server.programs()) == 2

    on_server(cache, body, max_programs=2)


@pytest.mark.parametrize(
    "where", ["library.ProgramStore.write", "library.ProgramStore._write_owner", "native.compile_to_file"]
)
def test_a_full_disk_is_told_and_forgotten(
    where: str, cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whichever of the files finds no room, nothing is left of the program, and it can come again."""
    data = component(wat.SUCCESS)

    async def body(server: ServerApi) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(f"pie_control.programs.{where}", full)
            with pytest.raises(StorageFull, match=r"^the disk of the server takes no more: [^/]*$"):
                await server.upload(data, "name")
        assert list(server.programs()) == []
        assert len(caplog.records) == 1
        assert (await server.upload(data, "name")).name == "name"

    on_server(cache, body)


def test_uploads_under_way_are_bounded_in_bytes(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "UPLOADING_BYTES", 10_000)

    async def body(server: ServerApi) -> None:
        texts = [returning(str(number)) + b"#" * 9_000 for number in range(3)]
        answers = await asyncio.gather(*(server.upload(text, "") for text in texts), return_exceptions=True)
        assert [type(answer) for answer in answers[1:]] == [Overloaded, Overloaded]
        await server.upload(texts[1] + b"#" * 20_000, "")  # alone, any size goes

    on_server(cache, body)


def test_uploads_of_one_tenant_leave_room_for_those_of_another(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "UPLOADING_BYTES", 10_000)

    async def body(server: ServerApi) -> None:
        ada, bob = (server.of(Standing(Tenant(name))) for name in ("ada", "bob"))
        texts = [returning(str(number)) + b"#" * 4_000 for number in range(3)]
        uploads = ada.upload(texts[0]), ada.upload(texts[1]), bob.upload(texts[2])
        answers = await asyncio.gather(*uploads, return_exceptions=True)
        assert [isinstance(answer, Overloaded) for answer in answers] == [False, True, False]

    on_server(cache, body)


# ---- memory ----------------------------------------------------------------------------------------------------------


def test_programs_leave_memory_and_come_back_from_disk(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    most = 100_000
    monkeypatch.setattr(prepared.PreparedPrograms.__init__, "__defaults__", (most,))
    compilations = 0
    compile_in_guest = python_source.compile_in_guest

    async def counts(*arguments: Any) -> str:
        nonlocal compilations
        compilations += 1
        return await compile_in_guest(*arguments)

    monkeypatch.setattr("pie_control.programs.host.programs.compile_in_guest", counts)

    async def body(server: ServerApi) -> None:
        programs = server._library._prepared
        for number in range(10):
            await server.upload(returning(f"{number} " + "x" * 10_000), f"name {number}")
            await server.upload(component(wat.SUCCESS, data=str(number)), f"component {number}")
            assert programs._bytes <= most
        assert 1 < len(programs._ready) < 20
        for number in range(10):
            assert str(await result_of(server, f"name {number}")).startswith(f'"{number} ')
            assert await result_of(server, f"component {number}") is None
            assert programs._bytes <= most
        assert programs._bytes == sum(each.size for each in programs._ready.values())

    on_server(cache, body)
    assert compilations == 10, "what was compiled once is loaded"

    async def after_a_restart(server: ServerApi) -> None:
        assert str(await result_of(server, "name 3")).startswith('"3 ')

    on_server(cache, after_a_restart)
    assert compilations == 10


# ---- compiling -------------------------------------------------------------------------------------------------------


def test_launches_and_other_uploads_go_on_while_a_component_is_compiled(cache: Path) -> None:
    async def body(server: ServerApi) -> None:
        await server.upload(returning("prepared"), "prepared")
        program = (await server.upload(returning("on disk"), "on disk")).program
        server._library._prepared.forget(program)
        slow = asyncio.create_task(server.upload(bombs.slow(32_000), "slow"))
        while not compilers():
            await asyncio.sleep(0.005)
        for _ in range(5):
            assert await result_of(server, "prepared") == '"prepared"'
        assert await result_of(server, "on disk") == '"on disk"'
        assert (await server.upload(returning("new"), "new")).name == "new"
        assert not slow.done()
        slow.cancel()

    on_server(cache, body)
    assert not compilers(), "the server ends what it compiles"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (bombs.slow(32_000), "took longer than 1 s to compile"),
        (bombs.nested(32), "cannot be compiled within 536870912 bytes of memory"),
        (bombs.nested(3), "does not export the function `run"),
        (bombs.deep_types(30), "effective type size exceeds the limit"),
        (b"\0asm\x0d\x00\x01\x00" + b"\xff" * 3_000_000, "not a component of the world"),
        (b"def main(args): pass\nY = " + b"(" * 5_000 + b"1" + b")" * 5_000, "cannot be used"),
        (b"def main(args): pass\nY = " + b"+".join([b"1"] * 200_000), "cannot be used"),
        (b"", "is empty"),
    ],
    ids=["slow", "nested", "nested-little", "types", "garbage", "parentheses", "sum", "nothing"],
)
def test_what_cannot_be_compiled_is_refused_and_leaves_nothing(data: bytes, message: str, cache: Path) -> None:
    async def body(server: ServerApi) -> None:
        before = files(cache)
        with pytest.raises(BadProgram, match=message) as refusal:
            await server.upload(data, "bomb")
        assert len(str(refusal.value)) < 10_000
        assert files(cache) == before
        assert server.programs() == ()

    seconds = 1 if "longer than 1 s" in message else HANG_SECONDS
    memory_bytes = 512 << 20 if "of memory" in message else 2 << 30
    on_server(cache, body, compile_seconds=seconds, compile_memory_bytes=memory_bytes)


def test_a_python_program_has_a_bounded_time_to_compile(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(python_source, "COMPILE_SECONDS", 0.05)
    monkeypatch.setattr(python_source, "COMPILE_SECONDS_PER_MIB", 0.0)
    text = b"def main(args): pass\n" + b"\n".join(b"def f%d(a, b, c): return a * b + c" % n for n in range(20_000))

    async def body(server: ServerApi) -> None:
        await server.upload(returning("prepared"), "prepared")
        slow = asyncio.create_task(server.upload(text, "slow"))
        assert await result_of(server, "prepared") == '"prepared"'
        with pytest.raises(BadProgram, match=r"more than \d+ s of processor time, the limit for its size"):
            await slow

    on_server(cache, body)


def test_a_program_may_wait_for_the_processor_while_it_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    class Compiler:
        left = iter((Step.PREEMPTED, Step.PREEMPTED, Step.DONE))

        def step(self) -> Step:
            time.sleep(0.03)
            return next(self.left)

        def outcome(self) -> None: ...
        def close(self) -> None: ...

    monkeypatch.setattr(python_source, "COMPILE_SECONDS", 0.02)
    compilation = python_source.Compilation("program", "")
    assert asyncio.run(python_source.compile_in_guest(cast(Instance, Compiler()), compilation)) == ""


# ---- damaged and foreign files ---------------------------------------------------------------------------------------


def test_a_server_does_not_start_on_a_folder_that_others_can_write(cache: Path) -> None:
    cache.chmod(0o777)

    async def body(_: ServerApi) -> None:
        raise AssertionError("it started")

    with pytest.raises(ConfigError, match="chmod go-w"):
        on_server(cache, body)


def test_a_component_under_the_hash_of_another_is_not_launched(cache: Path) -> None:
    (cache / "programs").mkdir(mode=0o700)
    (cache / "programs" / f"{'f00dfeed' * 8}.wasm").write_bytes(component(*wat.ECHO))

    async def body(server: ServerApi) -> None:
        with pytest.raises(UnknownName, match="damaged or gone from the disk: upload it again"):
            await server.launch("f00dfeed")
        assert server.programs() == ()

    on_server(cache, body)


def test_native_code_of_another_component_is_not_loaded(cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Whole native code of the right version, put in the place of another program's."""

    async def upload(server: ServerApi) -> None:
        victim = (await server.upload(component(*wat.ECHO), "victim")).program
        other = (await server.upload(component("unreachable"), "other")).program
        (good,), (evil,) = compiled(cache, victim), compiled(cache, other)
        evil.replace(good)

    async def launch(server: ServerApi) -> None:
        listener = Listener()
        (await server.launch("victim", listener=listener)).send("hello")
        assert (await listener.ended).result == "hello"

    on_server(cache, upload)
    with caplog.at_level(logging.WARNING):
        on_server(cache, launch)
    assert "is damaged and made anew" in caplog.text


def test_damaged_native_code_of_the_python_guest_is_made_anew(
    cache: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = (cache / "guest").resolve()
    (cache / "guest").unlink()
    (cache / "guest").mkdir(mode=0o700)
    for compiled in shared.glob(f"{python_guest.guest_hash()}-*"):
        guest = Path(shutil.copy(compiled, cache / "guest"))
        with open(guest, "r+b") as file:
            file.seek(1_000_000)
            file.write(b"x" * 64)

    async def refuse(_: Path) -> bytes:
        raise ConfigError("it would be built again")

    monkeypatch.setattr(python_guest, "build_guest", refuse)
    with pytest.raises(ConfigError, match="it would be built again"):
        on_server(cache, lambda _: asyncio.sleep(0))
    assert "is damaged and made anew" in caplog.text
