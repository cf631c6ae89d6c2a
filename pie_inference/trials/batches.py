"""Waves of sequences that decode together, as the control layer sends them for the same work.

Each token is fed back through its token slot; pages are assigned in advance.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ..protocol import Array, EmbedTxt, Forward, Sample
from ..recurrence.interface import NONE


class DecodeBatch:
    """Makes batches for `rows` sequences of at most `length` tokens, each in consecutive pages of its own, and with a
    state in a slot of its own if the model keeps some. They sample the most probable tokens, unless `sampler` has other
    parameters of `Sample`."""

    def __init__(
        self,
        rows: int,
        length: int,
        page_size: int,
        *,
        has_states: bool = False,
        sampler: Mapping[str, float] | None = None,
    ) -> None:
        self._rows, self._has_states = rows, has_states
        self._page_size = page_size
        self._pages_each = -(-length // page_size)
        self._inputs, self._outputs = np.arange(2 * rows, dtype=np.int32).reshape(2, rows)
        self._indptr = np.arange(rows + 1, dtype=np.int32)
        self._first_pages = np.arange(rows, dtype=np.int32) * self._pages_each
        self.embed = EmbedTxt(self._inputs, -1 - self._indptr[:rows], self._indptr)
        """Embeds the tokens that `sample` has written to the token slots."""
        self.sample = _sample(self._outputs, self._indptr, sampler or {})

    def prompt_embeds(self, length: int) -> Array:
        """Embeds that no decode step uses."""
        return np.arange(2 * self._rows, 2 * self._rows + length, dtype=np.int32)

    def embed_prompt(self, tokens: Sequence[int]) -> EmbedTxt:
        """Embeds a prompt into `prompt_embeds`."""
        return EmbedTxt(self.prompt_embeds(len(tokens)), _int32(tokens), _int32([0, len(tokens)]))

    def prefill(self, row: int, length: int) -> Forward:
        return self._extend(self.prompt_embeds(length), _int32([0, length]), row, row + 1, 0, _int32([length - 1]))

    def forward(self, position: int) -> Forward:
        """Runs one token of each sequence, at `position`."""
        return self._extend(self._inputs, self._indptr, 0, self._rows, position, self._indptr[:-1])

    def _extend(self, embeds: Array, indptr: Array, first: int, last: int, begin: int, out_rows: Array) -> Forward:
        """Adds tokens from position `begin` on to sequences first .. last."""
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
            **(self._states(indptr, first, last, begin) if self._has_states else {}),
        )

    def _states(self, indptr: Array, first: int, last: int, begin: int) -> dict[str, Array]:
        slots = np.arange(first, last, dtype=np.int32)
        writes = np.full(indptr[-1], NONE, np.int32)
        writes[indptr[1:] - 1] = slots
        return {"state_reads": slots if begin else np.full_like(slots, NONE), "state_writes": writes}


def _sample(embeds: Array, indptr: Array, sampler: Mapping[str, float]) -> Sample:
    """Samples a token at each embed, into token slots 0, 1, ..."""
    rows = len(embeds)
    given = {name: np.full(rows, value, np.float32) for name, value in {"temperature": 0.0, **sampler}.items()}
    return Sample(embeds, indptr[:rows], uniform=np.linspace(0, 1, rows, endpoint=False), **given)


def _int32(values: Sequence[int]) -> NDArray[np.int32]:
    return np.array(values, np.int32)
