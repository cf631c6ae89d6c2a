"""Random programs in the sandbox, against the model in float64: raw calls through the SDK, the wire of host processes,
control and a real worker process, with several inferlets at a time and too few pages for all of them.

`PIE_SANDBOX_PROGRAMS=500 pytest tests/system/test_meaning.py` runs more than usual; with `PIE_SANDBOX_FIRST=1234`, from
the ones of seed 1234 on.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from pie_control.server_api import ServerApi
from pie_inference.config import WorkerConfig
from pie_inference.serving.worker import Worker
from testing.vision_checkpoint import VOCAB, make_vision_checkpoint
from tests.helpers.adapters import make_adapter
from tests.helpers.dense_llama import DenseLlama
from tests.helpers.guard import HANG_SECONDS
from tests.helpers.issue_order import IssueOrder
from tests.helpers.pictures import real_pictures
from tests.helpers.recorded_author import ARGUMENTS, Program, record
from tests.helpers.scheduling import describe
from tests.helpers.servers import launch, started
from tests.helpers.tiers import corpus

FIRST = int(os.environ.get("PIE_SANDBOX_FIRST", "0"))
PROGRAMS = int(os.environ.get("PIE_SANDBOX_PROGRAMS", "8"))  # with some inferlets each
TOGETHER = 3  # inferlets
PLAYER = (Path(__file__).parents[1] / "helpers" / "played_calls.py").read_text()
PAGE_SIZE, MOST_TOKENS, PAGES = 8, 8, 18
SIZES: dict[str, Any] = {
    "page_size": PAGE_SIZE,
    "max_batch_tokens": MOST_TOKENS,
    "max_batch_rows": 5,
    "pages": PAGES,
    "host_pages": 4,
    "embeds": 400,
}


@dataclass(frozen=True)
class Form:
    """How a server runs inferlets and computes; how far it may be from the reference (see
    tests/inference/serving/test_meaning.py)."""

    hosts: int
    dtype: str
    attention: str
    close: float


FORMS = [Form(2, "float32", "auto", 1e-5), Form(0, "float64", "torch", 2e-7)]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_vision_checkpoint(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("adapters")
    everywhere = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.up_proj", "mlp.down_proj")
    return {
        "large": make_adapter(folder / "large", rank=8, modules=everywhere, seed=1),
        "small": make_adapter(folder / "small", rank=2, modules=("self_attn.o_proj", "mlp.gate_proj"), seed=2),
    }


@pytest.fixture(scope="module")
def programs(checkpoint: Path, adapters: dict[str, Path]) -> list[list[Program]]:
    """Of inferlets that run at a time."""
    model = describe(num_pages=PAGES, page_size=PAGE_SIZE, max_batch_tokens=MOST_TOKENS, max_batch_rows=5)
    model = msgspec.structs.replace(model, vocab_size=VOCAB)
    dense, made = DenseLlama(checkpoint, adapters=adapters), Counter[str]()
    new_meaning = partial(IssueOrder, PAGE_SIZE, MOST_TOKENS, dense)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # what is computed is tiny
    vision = Worker(WorkerConfig(checkpoint, "model", attention="torch", pages=2, embeds=1)).describe()[0].vision
    assert vision is not None
    pictures = real_pictures(checkpoint, vision)
    seeds = range(FIRST, FIRST + PROGRAMS)
    found = [record(seed, TOGETHER, new_meaning, model, list(adapters), made, pictures) for seed in seeds]
    torch.set_num_threads(threads)
    assert found.count(None) <= PROGRAMS // 3, "too much is undecided"
    tried = ARGUMENTS.keys() - {"create_queue", "destroy_queue", "import_kvpage"} | {
        "imported",
        "cancelled",
        "decode refused",
    }
    assert made.keys() >= tried or PROGRAMS < 8, f"{tried - made.keys()} is not tried"
    return [one for one in found if one is not None]


@pytest.mark.parametrize(
    "form", corpus(FORMS, kind=lambda _: "the wire"), ids=lambda form: f"{form.hosts} hosts, {form.dtype}"
)
def test_inferlets_are_told_what_their_calls_mean(
    form: Form, guest_cache: Path, checkpoint: Path, adapters: dict[str, Path], programs: list[list[Program]]
) -> None:
    async def check() -> None:
        given = [f"{name}={folder}" for name, folder in adapters.items()]
        options = {**SIZES, "dtype": form.dtype, "attention": form.attention, "hosts": form.hosts}
        async with (
            started(guest_cache, model=[f"small={checkpoint}"], adapter=given, **options) as server,
            asyncio.timeout(HANG_SECONDS * (1 + PROGRAMS // 20)),
        ):
            outcomes = Counter[str]()
            for together in programs:
                outcomes += Counter(await asyncio.gather(*(play(server, one, form.close) for one in together)))
            assert outcomes["finished"] > outcomes.total() // 3, outcomes  # the oldest is never ended
            assert outcomes["evicted"] or PROGRAMS < 8, f"there were pages for all: {outcomes}"
            await nothing_is_held(server)

    asyncio.run(check())


async def nothing_is_held(server: ServerApi) -> None:
    """What inferlets held comes back a little after their ends."""
    while True:
        ((replica,),) = server.statistics().models.values()
        held = replica.scheduler
        if (held.inferlets, held.pages.used, held.embeds.used) == (0, held.export_pages, 0):
            return
        await asyncio.sleep(0.01)


async def play(server: ServerApi, program: Program, close: float) -> str:
    """Runs a program, and compares what it was told. Gives how it ended."""
    images = {f"image {number}": picture.data for number, picture in enumerate(program.images)}
    given = json.dumps({"samplers": program.samplers, "images": len(images), "steps": program.steps}).encode()
    _, listener = await launch(server, PLAYER, blobs={"program": given, **images})
    ended = await listener.ended
    told = dict(map(json.loads, listener.messages))
    for future, value in told.items():
        try:
            program.wanted[future].check(value, close)
        except AssertionError as error:
            raise AssertionError(f"future {future}: {error}") from error
    assert ended.status in ("finished", "evicted"), ended.error
    if ended.result == "true":
        assert told.keys() == program.wanted.keys()
    return ended.status if ended.result != "false" else "lacks an export"
