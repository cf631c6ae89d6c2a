"""What does a forward cost whose queries see the context by position?

Its positions ascend but for the first, which goes back by one: that query must not see the last token of the context.
The wave is formed in the control layer, with all inferlets waiting; the mask is made on the worker.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from pie_control.calls import CALLS
from pie_control.calls.core import create_queue
from pie_control.calls.forward import plain
from pie_control.resources.address_space import AddressSpace
from pie_control.resources.quotas import Ledger, Quota
from pie_control.scheduling import Eager, Event, HostQuiet, Opened, Scheduler
from pie_control.testing.fake_model import FakeModel
from pie_inference.attention.position_masks import with_masks
from pie_inference.kv_cache.pages import KvCache, KvShape
from pie_inference.protocol import Forward, RunWave, WaveDone

from ..support.samples import median

T = TypeVar("T")
PAGE = 16
CHUNK = 1024  # tokens of the prompt in a forward
QUEUE = 1


@dataclass(frozen=True)
class Plan:
    """Numbers of tokens in the context, new tokens of the forward, and samples of each."""

    contexts: tuple[int, ...]
    tokens: int
    samples: int


FULL = Plan((1024, 8192, 32768), tokens=1024, samples=20)
QUICK = Plan((1024, 32768), tokens=1024, samples=5)


@dataclass(frozen=True)
class Row:
    """Medians. `ascending_ms` and `form_ms`: to form the wave, without and with the position that goes back;
    `mask_ms`: to make the mask of the latter on the worker, of `mask_mb` megabytes."""

    context: int
    tokens: int
    ascending_ms: float
    form_ms: float
    mask_ms: float
    mask_mb: float


async def run(plan: Plan) -> list[Row]:
    """One row for each length of the context."""
    return [_measure(context, plan) for context in plan.contexts]


class _World:
    """One inferlet with a context, and its scheduler."""

    def __init__(self, context: int, tokens: int) -> None:
        self.num_pages = (context + CHUNK + tokens) // PAGE + 1
        most = max(CHUNK, tokens)
        pool = self.num_pages + most // PAGE + 1
        fake = FakeModel(num_pages=pool, num_embeds=most, max_batch_tokens=most, max_context=1 << 20)
        model = fake.describe()[0]
        self._scheduler = Scheduler(model, Eager())
        self._events: list[Event] = [Opened(1, 0.0)]
        self._space = AddressSpace(1, model, Ledger(Quota(pages=pool, embeds=most)), self._events.append)
        create_queue.issue(self._space, QUEUE)
        self._call("alloc", "kvpage", self.num_pages)
        self._call("alloc", "emb", most)
        shape = KvShape(1, 1, 1, PAGE, torch.float32)
        self.cache = KvCache(shape, model.num_pages, torch.device("cpu"))
        for first in range(0, context, CHUNK):
            self.forward(range(first, min(first + CHUNK, context)), keep=True)

    def _call(self, name: str, *arguments: Any) -> None:
        issue = CALLS[name].issue
        assert issue is not None
        issue(self._space, QUEUE, *arguments)

    def forward(self, positions: Sequence[int], keep: bool = False) -> tuple[float, Forward]:
        """Seconds to form the wave of a forward, and its batch."""
        count, pages = len(positions), [0, self.num_pages]
        self._call("embed_txt", [1] * count, positions, [0, count])
        self._turns()
        plain.issue(self._space, QUEUE, pages, [0, count], pages if keep else [], [])
        seconds, (wave,) = timed(self._turn)
        (batch,) = wave.batches
        assert isinstance(batch, Forward)
        self.cache.note_positions(batch.q_slots, batch.q_positions)
        self._answer(wave)
        self._turns()
        return seconds, batch

    def _turns(self) -> None:
        while waves := self._turn():
            for wave in waves:
                self._answer(wave)

    def _turn(self) -> Sequence[RunWave]:
        turn = self._scheduler.turn(0.0, [*self._events, HostQuiet()])
        self._events.clear()
        for progress in turn.progress:
            self._space.progressed(progress.oldest, progress.taken)
        return turn.waves

    def _answer(self, wave: RunWave) -> None:
        self._events.append(WaveDone(wave.wave, tuple(None for _ in wave.batches), 0.0))


def _measure(context: int, plan: Plan) -> Row:
    world = _World(context, plan.tokens)
    ascending = list(range(context, context + plan.tokens))
    back = [context - 1, *ascending[1:]]
    plain, formed, masked = [], [], []
    for _ in range(plan.samples):
        plain.append(world.forward(ascending)[0])
        seconds, batch = world.forward(back)
        formed.append(seconds)
        seconds, made = timed(lambda batch=batch: with_masks(batch, world.cache))  # type: ignore[misc]
        masked.append(seconds)
    assert made.mask_bits is not None
    ascending_ms, form_ms, mask_ms = (round(1e3 * median(samples), 3) for samples in (plain, formed, masked))
    mask_mb = round(made.mask_bits.nbytes / 1e6, 3)
    return Row(context, plan.tokens, ascending_ms, form_ms, mask_ms, mask_mb)


def timed(action: Callable[[], T]) -> tuple[float, T]:
    start = time.perf_counter()
    value = action()
    return time.perf_counter() - start, value
