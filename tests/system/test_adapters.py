"""Adapters on a real model in worker processes, from programs in the sandbox to weights, also after a worker died."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from pie_control.errors import BadAdapter
from pie_inference.config import WorkerConfig
from pie_inference.serving.worker import Worker
from testing.checkpoints import make_checkpoint
from testing.worker_batches import Driver, Keys
from tests.helpers.adapters import LLAMA, make_adapter, merged
from tests.helpers.guard import HANG_SECONDS
from tests.helpers.servers import run, started, worker_pids

PROMPT = list(range(5, 40))
LENGTH = 12
PROGRAM = """
from inferlet_sdk import *

async def tokens_of(model, adapter, prompt, length):
    async with Context(model, adapter=adapter).fill(prompt) as ctx:
        await ctx.generate_until(IgnoreStopTokens(), length)
        return list(ctx.tokens[len(prompt):])

async def main(args, adapters, prompt, length):
    return await gather(*(tokens_of(args.model, adapter, prompt, length) for adapter in adapters))
"""


def expected(folder: Path, *adapters: Path) -> list[list[int]]:
    """Tokens of the model alone, and with each adapter merged into its weights."""
    weights, found = load_file(folder / "model.safetensors"), []
    options: dict[str, Any] = {"pages": 64, "host_pages": 8, "embeds": 1024, "dtype": "float32", "threads": 1}
    threads = torch.get_num_threads()
    for number, adapter in enumerate((None, *adapters)):
        whole = make_checkpoint(folder.parent / f"merged{number}")
        save_file(merged(weights, adapter) if adapter else weights, whole / "model.safetensors")
        driver = Driver(Worker(WorkerConfig(whole, "model", **options)).run, "model")
        found.append(driver.generate(Keys(), PROMPT, LENGTH))
    torch.set_num_threads(threads)
    return found


def test_programs_get_what_merged_weights_give(guest_cache: Path, tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path / "model")
    poet = make_adapter(tmp_path / "poet", modules=list(LLAMA), seed=1)
    painter = make_adapter(tmp_path / "in" / "painter", rank=7, seed=2)
    wanted = expected(checkpoint, poet, painter)
    assert len({tuple(tokens) for tokens in wanted}) == 3
    broken = make_adapter(tmp_path / "in" / "broken", r=3)
    kwargs = {"adapters": [None, "poet", "painter"], "prompt": PROMPT, "length": LENGTH}

    async def check() -> None:
        settings: dict[str, Any] = {
            "model": [f"tiny={checkpoint}"],
            "adapter": [f"tiny/poet={poet}"],
            "adapter_dir": str(tmp_path / "in"),
            "replicas": 2,
            "pages": 128,
            "max_batch_tokens": 256,
            "embeds": 1024,
            "dtype": "float32",
            "warm_pool": 0,
        }
        async with started(guest_cache, **settings) as server, asyncio.timeout(HANG_SECONDS):
            assert (await server.adapters.load("painter", "painter")).bytes > 0
            with pytest.raises(BadAdapter, match=r"has shape \[4, 96\], expected \[3, 96\]"):
                await server.adapters.load("broken", broken.name)
            assert [info.name for info in server.adapters.all()] == ["poet", "painter"]
            found = await asyncio.gather(*(run(server, PROGRAM, kwargs) for _ in range(2)))  # one on each worker
            assert found == [wanted] * 2
            os.kill(worker_pids(server, "tiny")[0], signal.SIGKILL)
            while [one.restarts for one in server.statistics().models["tiny"]] != [1, 0] or server.outages():
                await asyncio.sleep(0.05)
            assert await asyncio.gather(*(run(server, PROGRAM, kwargs) for _ in range(2))) == [wanted] * 2

    asyncio.run(check())
