"""The processes that decode images: what happens when one of them dies, hangs or says what cannot be."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pie_control.images import reader as module
from pie_control.images.messages import PrepareImage
from pie_control.images.prepare import prepare
from pie_control.images.reader import ImageReader
from pie_control.images.tiling import BadImage
from tests.control.images.test_prepare import VISION, saved
from tests.helpers.guard import HANG_SECONDS
from tests.helpers.vision import picture

PNG = saved(picture(90, 60))


def reading(body: Callable[[ImageReader], Awaitable[Any]]) -> Any:
    async def main() -> Any:
        reader = ImageReader()
        try:
            async with asyncio.timeout(HANG_SECONDS):
                return await body(reader)
        finally:
            reader.close()

    return asyncio.run(main())


def charge(_seconds: float) -> None:
    """Nobody counts it."""


def children(reader: ImageReader) -> list[Any]:
    return [*vars(reader)["_idle"], *vars(reader)["_busy"]]


def test_an_image_is_what_the_library_makes_of_it() -> None:
    charged: list[float] = []
    assert reading(lambda reader: reader.read("tenant", "one", PNG, VISION, charged.append)) == prepare(PNG, VISION)
    assert len(charged) == 1
    assert charged[0] > 0


def test_processes_are_few_and_stay() -> None:
    async def body(reader: ImageReader) -> list[int]:
        await asyncio.gather(*(reader.read(f"tenant {n % 3}", f"inferlet {n}", PNG, VISION, charge) for n in range(9)))
        first = {child._process.pid for child in children(reader)}
        with pytest.raises(BadImage, match="no image of a known format"):
            await reader.read("tenant", "one", b"text", VISION, charge)
        await reader.read("tenant", "one", PNG, VISION, charge)
        assert {child._process.pid for child in children(reader)} == first
        return list(first)

    assert 1 <= len(pids := reading(body)) <= module.PLACES
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_a_process_that_dies_takes_one_image_with_it() -> None:
    async def body(reader: ImageReader) -> None:
        await reader.read("tenant", "one", PNG, VISION, charge)
        (child,) = children(reader)
        os.kill(child._process.pid, signal.SIGKILL)
        with pytest.raises(BadImage, match="its decoder died"):
            await reader.read("tenant", "one", PNG, VISION, charge)
        await reader.read("tenant", "one", PNG, VISION, charge)

    reading(body)


def test_a_process_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(reader: ImageReader) -> None:
        await reader.read("tenant", "one", PNG, VISION, charge)
        (child,) = children(reader)
        os.kill(child._process.pid, signal.SIGSTOP)
        monkeypatch.setattr(module, "PATIENCE", 0.2)
        with pytest.raises(BadImage, match=r"not decoded within 0\.2 s"):
            await reader.read("tenant", "one", PNG, VISION, charge)
        monkeypatch.undo()
        await reader.read("tenant", "one", PNG, VISION, charge)
        assert children(reader) != [child]

    reading(body)


def test_an_image_has_so_much_processor_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The process is bounded by itself, so a busy machine changes nothing."""
    (tmp_path / "slow.py").write_text(
        "import sys\n"
        "from pie_control.images import child\n"
        "def prepare(*_):\n    while True: pass\n"
        "child.prepare = prepare\n"
        "child.main(*map(int, sys.argv[1:]))\n"
    )

    async def body(reader: ImageReader) -> None:
        charged: list[float] = []
        with pytest.raises(BadImage, match="takes more than 1 s to decode: send a smaller one"):
            await reader.read("tenant", "one", PNG, VISION, charged.append)
        assert charged == [1]

    def start(arguments: list[str], **options: Any) -> Any:
        return subprocess.Popen([sys.executable, str(tmp_path / "slow.py"), *arguments[3:]], **options)

    monkeypatch.setattr(module, "SECONDS", 1)
    monkeypatch.setattr(module, "subprocess", SimpleNamespace(Popen=start))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    reading(body)


def test_slow_images_of_a_tenant_leave_places_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a tenant's inferlets as well, whoever has sent how many."""
    ask, gate, under_way = module._Child.ask, asyncio.Event(), Counter[bytes]()

    async def slow(child: Any, request: PrepareImage) -> Any:
        if request.data != PNG:
            under_way[request.data] += 1
            await gate.wait()
        return await ask(child, request)

    async def body(reader: ImageReader) -> None:
        def of(tenant: str, inferlet: str, data: bytes) -> asyncio.Task[Any]:
            return asyncio.create_task(reader.read(tenant, inferlet, data, VISION, charge))

        hog = [of("hog", "greedy", b"greedy") for _ in range(8)]
        await of("hog", "modest", PNG)
        assert under_way == {b"greedy": 1}
        hog += [of("hog", f"inferlet {number}", b"many") for number in range(8)]
        await of("other", "one", PNG)
        assert under_way == {b"greedy": 1, b"many": 1}
        for task in hog:
            task.cancel()
        await asyncio.sleep(0)
        gate.set()
        await asyncio.gather(*hog, return_exceptions=True)
        await of("hog", "modest", PNG)

    monkeypatch.setattr(module._Child, "ask", slow)
    reading(body)


def test_one_who_gives_up_again_and_again_starts_one_process_and_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    charged: list[float] = []
    started: list[Any] = []
    start = module._Child.start

    async def counted() -> Any:
        started.append(await start())
        return started[-1]

    async def body(reader: ImageReader) -> None:
        for _ in range(3):
            gone = asyncio.create_task(reader.read("tenant", "one", PNG, VISION, charged.append))
            while not vars(reader)["_busy"]:
                await asyncio.sleep(0)
            gone.cancel()
            following = asyncio.create_task(reader.read("tenant", "one", PNG, VISION, charge))
            with pytest.raises(asyncio.CancelledError):
                await gone
            assert await following == prepare(PNG, VISION), "no half answer is left"
        assert children(reader) == started
        assert len(started) == 1

    monkeypatch.setattr(module._Child, "start", counted)
    reading(body)
    assert len(charged) == 3
    assert sum(charged) > 0


LIES = {
    "tiles that are missing": "Begun(90, 60, 6, 0.0)",
    "a giant": "Begun(10**6, 10**6, 7, 0.0)",
    "a size of nothing": "Begun(0, 0, 1, 0.0)",
    "an image for an answer": "bytes(100)",
    "tiles that are too small": "Begun(90, 60, 7, 0.0)",
}


@pytest.mark.parametrize("lie", LIES)
def test_what_cannot_be_is_not_believed(lie: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A decoder that was taken over by an image must not get further."""
    (tmp_path / "liar.py").write_text(
        "import sys\n"
        "from pie_control.images.messages import *\n"
        "head = sys.stdin.buffer.read(8)\n"
        "sys.stdin.buffer.read(int.from_bytes(head, 'little'))\n"
        f"sys.stdout.buffer.write(framed({LIES[lie]}) + framed(b'x' * 17) * 9)\n"
    )

    def start(_: Any, **options: Any) -> Any:
        return subprocess.Popen([sys.executable, str(tmp_path / "liar.py")], **options)

    async def body(reader: ImageReader) -> None:
        with pytest.raises(BadImage, match="its decoder died"):
            await reader.read("tenant", "one", PNG, VISION, charge)

    monkeypatch.setattr(module, "subprocess", SimpleNamespace(Popen=start))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    reading(body)
