"""Bundled programs in the sandbox: it has what they import."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from pie_control.testing.fake_model import FakeModel
from pie_control.testing.in_process import InProcessClient
from tests.control.programs.bundled.launching import BUNDLED
from tests.helpers.guard import HANG_SECONDS
from tests.helpers.servers import launch, started


def test_a_program_serves_a_request(guest_cache: Path) -> None:
    source = (BUNDLED / "completions" / "completions.py").read_text()

    async def check() -> None:
        async with started(guest_cache, InProcessClient(FakeModel())) as server:
            for stream in (False, True):
                body = {"prompt": "The sun", "max_tokens": 4, "ignore_eos": True, "temperature": 0, "stream": stream}
                _, listener = await launch(server, source, blobs={"request": json.dumps(body).encode()})
                ended = await asyncio.wait_for(listener.ended, HANG_SECONDS)
                assert ended.status == "finished", ended.error
                if stream:
                    last = json.loads(listener.messages[-1])
                else:
                    assert ended.result is not None
                    last = json.loads(ended.result)
                    assert last["usage"]["completion_tokens"] == 4
                assert last["choices"][0]["finish_reason"] == "length"

    asyncio.run(check())
