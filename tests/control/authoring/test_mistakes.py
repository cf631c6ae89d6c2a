"""Mistakes that are told in the sandbox, whose Python is another one, and natively."""

from __future__ import annotations

import asyncio
from pathlib import Path

from pie_control.authoring.native.program import source_of
from pie_control.authoring.native.server import native_server
from pie_control.authoring.testing import fake_client
from pie_control.config import build_config
from pie_control.testing.fake_model import FakeModel
from pie_control.testing.in_process import InProcessClient
from tests.helpers.servers import launch, started

FORGOTTEN = """
from inferlet_sdk import Context
async def main(args):
    ctx = Context().fill("x")
    ctx.flush()
    return 3
"""
FAILING = """
from inferlet_sdk import Context
async def main(args):
    ctx = Context().fill("x")
    await ctx.generate_until(max_tokens="many")
"""


def test_mistakes_are_told_in_the_sandbox_and_outside(tmp_path: Path, guest_cache: Path) -> None:
    async def in_the_sandbox() -> list[str]:
        async with started(guest_cache, InProcessClient(FakeModel("demo"))) as api:
            return [(await (await launch(api, text))[1].ended).error or "" for text in (FORGOTTEN, FAILING)]

    forgotten, failing = asyncio.run(in_the_sandbox())
    assert forgotten.startswith("`Context.flush(...)` was called but never awaited, so it did nothing: write `await`")
    assert forgotten.endswith("ctx.flush()")
    assert "  in the call Context.generate_until(max_tokens='many')" in failing
    path = tmp_path / "test.py"
    with native_server(build_config({}).resolved(), fake_client) as server:
        path.write_text(FORGOTTEN)
        native = server.run(source_of(path)).error or ""
        assert native.splitlines()[0] == forgotten.splitlines()[0]
        path.write_text(FAILING)
        assert "in the call Context.generate_until(max_tokens='many')" in (server.run(source_of(path)).error or "")
