"""A program in C, whose module is in the repository, writes what the same program in Python does."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import pytest

from pie_control.authoring.build import component_of
from pie_control.server_api import ServerApi
from pie_control.testing.fake_model import FakeModel
from pie_control.testing.in_process import InProcessClient
from tests.helpers.guard import HANG_SECONDS
from tests.helpers.servers import Listener, started
from tests.helpers.tree import EXAMPLES

FOLDER = Path(__file__).with_name("c_guest")
SOURCE, MODULE, BUILT = FOLDER / "greedy.c", FOLDER / "greedy.wasm", FOLDER / "built.json"
OPTIONS = ("-Oz", "-Wall", "-Wextra", "-nostdlib", "-Wl,--no-entry,--strip-all")
COMPILERS = {
    "zig": ("cc", "-target", "wasm32-freestanding"),
    "clang": ("--target=wasm32-unknown-unknown",),
    "clang-14": ("--target=wasm32-unknown-unknown", "-fuse-ld=/usr/bin/wasm-ld-14"),
}
UPDATE = "run python -m tests.control.authoring.test_c_guest"


def compile_source(output: Path) -> str | None:
    """Compiles the source with the first compiler that is here and can; its command. None: there is none."""
    for compiler, target in COMPILERS.items():
        command = [compiler, *target, *OPTIONS, "-o", str(output), str(SOURCE)]
        if shutil.which(compiler) and subprocess.run(command, capture_output=True, check=False).returncode == 0:
            return " ".join([*command[:-2], MODULE.name, SOURCE.name])
    return None


def hashes() -> dict[str, str]:
    return {path.name: sha256(path.read_bytes()).hexdigest() for path in (SOURCE, MODULE)}


async def text_of(server: ServerApi, program: bytes) -> str:
    """All that an inferlet sends."""
    stored, listener = await server.upload(program, "greedy"), Listener()
    await server.launch(stored.program, listener=listener)
    ended = await listener.ended
    assert (ended.status, ended.error) == ("finished", None)
    return "".join(listener.messages)


def test_the_module_is_made_of_the_source() -> None:
    built = json.loads(BUILT.read_text())
    assert {name: built[name] for name in hashes()} == hashes(), UPDATE


@pytest.mark.parametrize("made", ["kept", "anew"])
def test_it_writes_what_python_does(made: str, guest_cache: Path, tmp_path: Path) -> None:
    module = MODULE if made == "kept" else tmp_path / "greedy.wasm"
    if made == "anew" and compile_source(module) is None:
        pytest.skip("there is no C compiler for WebAssembly here")

    async def check() -> None:
        async with (
            started(guest_cache, InProcessClient(FakeModel()), warm_pool=0) as server,
            asyncio.timeout(HANG_SECONDS),
        ):
            text = await text_of(server, component_of(module))
            assert len(text) > 30
            assert text == await text_of(server, (EXAMPLES / "raw_api" / "raw_api.py").read_bytes())

    asyncio.run(check())


if __name__ == "__main__":
    command = compile_source(MODULE) or sys.exit("there is no C compiler for WebAssembly here: `pip install ziglang`")
    BUILT.write_text(json.dumps({"command": command, **hashes()}, indent=2) + "\n")
