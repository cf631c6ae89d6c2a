"""The yardstick of `tpot`: the worker's code in a tight loop, without sandbox, control layer or socket between.

It runs the waves that Pie sends for the same work: all sequences decode together, each token is fed back through its
token slot, pages are assigned in advance.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from pie_inference.config import WorkerConfig
from pie_inference.protocol import Array, EmbedText, Forward, NextTokens, RunWave, Sample
from pie_inference.worker import Worker


@dataclass(frozen=True)
class Generated:
    """`tokens` int [sequences, tokens]; `seconds_per_token` between the first and the last."""

    tokens: NDArray[np.int32]
    seconds_per_token: float


class ClosedLoop:
    """A worker in this process."""

    def __init__(self, config: WorkerConfig) -> None:
        self._worker = Worker(config)
        self.description = self._worker.describe()[0]
        self.threads = torch.get_num_threads()
        self._wave = 0

    def generate(self, prompts: Sequence[Sequence[int]], count: int) -> Generated:
        """Greedy tokens behind prompts of one length, which run one after the other before the time is taken."""
        torch.set_num_threads(self.threads)  # it holds for the calling thread, which need not be the one that loaded
        batch = _DecodeBatch(len(prompts), len(prompts[0]) + count, self.description.page_size)
        for row, prompt in enumerate(prompts):
            self._run(EmbedText(batch.prompt_embeds(len(prompt)), _int32(prompt)), batch.prefill(row, len(prompt)))
        tokens = [self._run(batch.sample())]
        start = time.perf_counter()
        for position in range(len(prompts[0]), len(prompts[0]) + count - 1):
            tokens.append(self._run(batch.embed(), batch.forward(position), batch.sample()))
        elapsed = time.perf_counter() - start
        return Generated(np.array(tokens).T, elapsed / (count - 1))

    def _run(self, *batches: EmbedText | Forward | Sample) -> Array:
        """The sampled tokens, if the last batch samples."""
        self._wave += 1
        done = self._worker.run(RunWave(self._wave, self.description.name, batches))
        result = done.results[-1]
        if isinstance(result, NextTokens):
            return result.tokens
        assert result is None, result
        return _int32([])


class _DecodeBatch:
    """The batches of `rows` sequences of at most `length` tokens, each in pages of its own, one behind the other."""

    def __init__(self, rows: int, length: int, page_size: int) -> None:
        self._rows = rows
        self._page_size = page_size
        self._pages_each = -(-length // page_size)
        self._inputs, self._outputs = np.arange(2 * rows, dtype=np.int32).reshape(2, rows)
        self._indptr = np.arange(rows + 1, dtype=np.int32)
        self._first_pages = np.arange(rows, dtype=np.int32) * self._pages_each
        self._embed = EmbedText(self._inputs, -1 - self._indptr[:rows])
        self._sample = _greedy(self._outputs, self._indptr)

    def prompt_embeds(self, length: int) -> Array:
        """Embeds that no decode step uses."""
        return np.arange(2 * self._rows, 2 * self._rows + length, dtype=np.int32)

    def prefill(self, row: int, length: int) -> Forward:
        return self._extend(self.prompt_embeds(length), _int32([0, length]), row, row + 1, 0, _int32([length - 1]))

    def embed(self) -> EmbedText:
        """The tokens that `sample` has left in the token slots."""
        return self._embed

    def forward(self, position: int) -> Forward:
        """One token of each sequence."""
        return self._extend(self._inputs, self._indptr, 0, self._rows, position, self._indptr[:-1])

    def sample(self) -> Sample:
        return self._sample

    def _extend(self, embeds: Array, indptr: Array, first: int, last: int, begin: int, out_rows: Array) -> Forward:
        """Sequences first .. last get tokens from position `begin` on."""
        rows = last - first
        end = begin + len(embeds) // rows
        used = -(-end // self._page_size)
        ends = np.full((rows, used), self._page_size, np.int32)
        ends[:, -1] = end - (used - 1) * self._page_size
        positions = np.arange(begin, end, dtype=np.int32)
        slots = self._first_pages[first:last, None] * self._page_size + positions
        return Forward(
            q_indptr=indptr,
            q_embeds=embeds,
            q_positions=np.tile(positions, rows),
            q_slots=slots.ravel(),
            kv_indptr=np.arange(rows + 1, dtype=np.int32) * used,
            kv_pages=(self._first_pages[first:last, None] + np.arange(used, dtype=np.int32)).ravel(),
            kv_begins=np.zeros(rows * used, np.int32),
            kv_ends=ends.ravel(),
            dense=np.ones(rows, np.bool_),
            out_rows=out_rows,
            out_embeds=self._outputs[first:last],
        )


def _greedy(embeds: Array, indptr: Array) -> Sample:
    """Samples the most probable token at each embed, into token slots 0, 1, ..."""
    rows = len(embeds)
    zeros, ones = np.zeros(rows, np.float32), np.ones(rows, np.float32)
    return Sample(
        embeds=embeds,
        token_slots=indptr[:rows],
        temperature=zeros,
        top_k=np.zeros(rows, np.int32),
        top_p=ones,
        min_p=zeros,
        uniform=np.zeros(rows, np.float64),
        repetition=ones,
        frequency=zeros,
        presence=zeros,
        recent_indptr=np.zeros(rows + 1, np.int32),
        recent=_int32([]),
        allowed_rows=np.full(rows, -1, np.int32),
        allowed=np.zeros((0, 0), np.uint8),
    )


def _int32(values: Sequence[int]) -> NDArray[np.int32]:
    return np.array(values, np.int32)
