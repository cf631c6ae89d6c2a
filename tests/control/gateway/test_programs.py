"""The programs of routes: uploaded once, and replaced by the operator's."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import cast

import pytest

from pie_control.cli.commands.serve import read_programs
from pie_control.errors import BadProgram, ConfigError
from pie_control.gateway.programs import FOLDER, ROUTES, RoutePrograms
from pie_control.programs.store import SERVER
from pie_control.server_api import ServerApi
from tests.helpers.fake_server_api import FakeServerApi


def test_every_route_has_a_program() -> None:
    assert {name for name in ROUTES.values() if not (FOLDER / name / f"{name}.py").is_file()} == set()


def test_a_program_is_uploaded_once() -> None:
    async def test() -> None:
        server = FakeServerApi()
        programs = RoutePrograms(cast(ServerApi, server), {"completions": b"x = 1"})
        found = await asyncio.gather(*(programs.find("/v1/completions") for _ in range(3)))
        (kept,) = [one for one in server.tenants[SERVER].programs() if one.name == "completions"]
        assert found == [kept.program] * 3
        assert server.tenants[SERVER].uploads == 1
        assert await programs.find("/v1/chat/completions") not in found

    asyncio.run(test())


def test_one_that_cannot_be_uploaded_is_tried_again() -> None:
    async def test() -> None:
        given = {"completions": b"def"}
        programs = RoutePrograms(cast(ServerApi, FakeServerApi()), given)
        with pytest.raises(BadProgram):
            await programs.find("/v1/completions")
        given["completions"] = b"x = 1"
        assert await programs.find("/v1/completions")

    asyncio.run(test())


def test_files_that_replace_them(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("x = 1")
    assert read_programs([f"completions={file}"]) == {"completions": b"x = 1"}
    for wrong in ("completions", "completions=", f"other={file}", f"completions={tmp_path}/none.py"):
        with pytest.raises(ConfigError, match="--program"):
            read_programs([wrong])
    file.write_text("def main(:")
    with pytest.raises(BadProgram, match=r"mine\.py"):
        read_programs([f"completions={file}"])
