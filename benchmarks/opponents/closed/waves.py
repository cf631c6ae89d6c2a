"""The batches of a wave of `closed`, from what its sequences need.

Each sequence has a row: of the page tables, of the output embeds, and of the token slots.
"""

from __future__ import annotations

from collections.abc import Sequence as Several

import msgspec
import numpy as np
from numpy.typing import NDArray

from pie_inference.protocol import Array, EmbedTxt, Forward, GrammarStart, ModelDescription, Sample

from .sequence import Parameters, Sequence

Integers = NDArray[np.int32]


class WaveMaker:
    """Makes batches. `rows` sequences at most run at a time."""

    def __init__(self, description: ModelDescription) -> None:
        self.rows = min(description.max_batch_rows, description.num_token_slots)
        self.budget = min(description.max_batch_tokens, description.num_embeds - self.rows)
        self._page_size = description.page_size
        longest = -(-description.max_context // description.page_size)
        self._tables = np.zeros((self.rows, min(longest, description.num_pages)), np.int32)
        self._columns = np.arange(self._tables.shape[1], dtype=np.int32)

    def place(self, sequence: Sequence) -> None:
        """A sequence has got its row and its pages."""
        self._tables[sequence.row, : len(sequence.pages)] = sequence.pages

    def inputs(self, parts: Several[tuple[Sequence, int, int]]) -> tuple[EmbedTxt, Forward]:
        """Runs `count` tokens of each sequence from position `begin` on. Tokens that are not known yet are in the
        sequence's token slot. The output of the last one goes to the sequence's output embed."""
        rows = np.array([sequence.row for sequence, _, _ in parts], np.int32)
        begins = np.array([begin for _, begin, _ in parts], np.int32)
        counts = np.array([count for _, _, count in parts], np.int32)
        indptr = _indptr(counts)
        total = int(indptr[-1])
        embeds = np.arange(total, dtype=np.int32)
        positions = embeds + np.repeat(begins - indptr[:-1], counts)
        pages = self._tables[np.repeat(rows, counts), positions // self._page_size]
        tokens = np.array([token for part in parts for token in _tokens(*part)], np.int32)
        forward = Forward(
            q_indptr=indptr,
            q_embeds=embeds,
            q_positions=positions,
            q_slots=pages * self._page_size + positions % self._page_size,
            **self._keys(rows, begins + counts),
            out_rows=indptr[1:] - 1,
            out_embeds=self.budget + rows,
        )
        return EmbedTxt(embeds, tokens, indptr), forward

    def _keys(self, rows: Integers, lengths: Integers) -> dict[str, Array]:
        used = -(-lengths // self._page_size)
        indptr = _indptr(used)
        ends = np.full(indptr[-1], self._page_size, np.int32)
        ends[indptr[1:] - 1] = lengths - (used - 1) * self._page_size
        most = int(used.max())
        return {
            "kv_indptr": indptr,
            "kv_pages": self._tables[rows, :most][self._columns[:most] < used[:, None]],
            "kv_begins": np.zeros(len(ends), np.int32),
            "kv_ends": ends,
            "dense": np.ones(len(rows), np.bool_),
        }

    def sample(self, sequences: Several[Sequence], ended: Several[int]) -> Sample:
        """Chooses a token behind each sequence's last output, into its token slot. `ended`: matchers that are over."""
        rows = np.array([one.row for one in sequences], np.int32)
        given = [one.parameters for one in sequences]
        random = [one.random.random() if one.parameters.temperature else 0.0 for one in sequences]
        batch = Sample(
            embeds=self.budget + rows,
            token_slots=rows,
            temperature=np.array([one.temperature for one in given], np.float32),
            uniform=np.array(random, np.float64),
            **_bounds(given),
        )
        if not ended and not any(one.matcher for one in sequences):
            return batch
        starts = [_start(one) for one in sequences]
        return msgspec.structs.replace(
            batch,
            matchers=np.array([one.matcher for one in sequences], np.int64),
            matched=np.array([one.sampled if one.matcher else 0 for one in sequences], np.int32),
            start_indptr=_indptr(np.array([len(start) for start in starts], np.int32)),
            starts=np.frombuffer(b"".join(starts), np.uint8),
            ended=np.array(ended, np.int64),
        )


def _tokens(sequence: Sequence, begin: int, count: int) -> list[int]:
    """Those that are known, else the place of the one that is not."""
    return sequence.tokens[begin : begin + count] or [-1 - sequence.row]


def _bounds(given: list[Parameters]) -> dict[str, NDArray[np.generic]]:
    """Parameters that the worker needs if any sequence has them."""
    if all((one.top_k, one.top_p, one.min_p) == (0, 1.0, 0.0) for one in given):
        return {}
    return {
        "top_k": np.array([one.top_k for one in given], np.int32),
        "top_p": np.array([one.top_p for one in given], np.float32),
        "min_p": np.array([one.min_p for one in given], np.float32),
    }


def _start(sequence: Sequence) -> bytes:
    if not sequence.matcher or sequence.sampled:
        return b""
    return msgspec.msgpack.encode(GrammarStart(sequence.parameters.grammar, [], 0))


def _indptr(counts: Integers) -> Integers:
    return np.concatenate([np.zeros(1, np.int32), np.cumsum(counts, dtype=np.int32)])
