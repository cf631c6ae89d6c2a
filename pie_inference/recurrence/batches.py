"""The slots of states that a `Forward` names, checked, and the pieces of it that run one after the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Literal, NamedTuple

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from ..errors import BatchError
from ..protocol import Array, Forward, check_indptr
from .interface import NONE, Runs

Cut = Literal["none", "texts"]
"""How a batch is cut for a model. `texts`: in a piece there is one text, or one row of each, and states are left
behind last rows only."""


class Piece(NamedTuple):
    """Rows of a batch that run together."""

    batch: Forward
    sequences: Sequence[int]  # whose they are, by their numbers in the whole batch


class _Part(NamedTuple):
    """Rows `first` to `last` of a sequence, and its slots."""

    sequence: int
    first: int
    last: int
    reads: int
    writes: int


def runs_of(batch: Forward, slots: int, device: torch.device) -> Runs:
    """The sequences of a batch, for a pool of `slots` slots. Raises BatchError if its slots break the rules of `Runs`,
    ValueError if its arrays do not fit together."""
    reads, writes, indptr = batch.state_reads, batch.state_writes, batch.q_indptr
    if reads is None or writes is None:
        raise BatchError("the model keeps a state of each text: a forward must name the slots of states")
    check_indptr(indptr, len(reads), len(writes), "q_indptr of state_writes")
    counts = np.diff(indptr)
    if (counts < 1).any():
        raise BatchError("a sequence without rows has no state")
    for each in (reads, writes):
        if len(each) and not NONE <= each.min() <= each.max() < slots:
            raise BatchError(f"state slots are 0 to {slots - 1}, or {NONE} for none")
    _check_writes(indptr, reads, writes)
    return Runs.make(counts, reads, writes, device)


def _check_writes(indptr: Array, reads: Array, writes: Array) -> None:
    rows = np.flatnonzero(writes != NONE)
    if len(np.unique(writes[rows])) != len(rows):
        raise BatchError("two rows write one state slot")
    owners = np.searchsorted(indptr, rows, "right") - 1
    written = np.bincount(owners, minlength=len(reads))
    alone = (rows == indptr[owners + 1] - 1) & (written[owners] == 1)
    in_place = alone & (reads[owners] == writes[rows])
    foreign = np.isin(writes[rows], reads) & ~in_place
    shared = in_place & (np.bincount(reads[reads != NONE], minlength=1 + writes.max(initial=0))[writes[rows]] > 1)
    if (foreign | shared).any():
        slot = writes[rows][foreign | shared][0]
        raise BatchError(f"state slot {slot} is read by another sequence, or needed again, when it is written")


def in_place(batch: Forward) -> NDArray[np.bool_]:
    """bool [N]: the sequences that leave their state in the slot that they read. They cannot run twice."""
    reads, writes = batch.state_reads, batch.state_writes
    if reads is None or writes is None:
        return np.zeros(batch.count(), np.bool_)
    again: NDArray[np.bool_] = (reads != NONE) & (writes[batch.q_indptr[1:] - 1] == reads)
    return again


def pieces_of(batch: Forward, cut: Cut) -> Iterator[Piece]:
    """The pieces of a batch that `runs_of` has accepted, in the order in which they run. Raises BatchError, before the
    first one, if it cannot be cut."""
    reads, writes, counts = batch.state_reads, batch.state_writes, np.diff(batch.q_indptr)
    if cut == "none" or reads is None or writes is None or counts.max(initial=0) <= 1:
        yield Piece(batch, range(len(counts)))
        return
    parts = [_parts(batch, reads, writes, n) for n in range(len(counts))]
    if len(parts) == 1 == len(parts[0]):
        yield Piece(batch, (0,))
        return
    if batch.position_keys is not None or batch.mask_indptr is not None or batch.masked is not None:
        raise BatchError("the model runs texts one by one, and no masks")
    for turn in zip_longest(*parts):
        found = [part for part in turn if part is not None]
        single = [part for part in found if part.last - part.first == 1]
        if single:
            yield _piece(batch, single)
        for part in found:
            if part.last - part.first > 1:
                yield _piece(batch, [part])


def _parts(batch: Forward, reads: Array, writes: Array, n: int) -> list[_Part]:
    """The parts of a sequence, each of which leaves a state that the next one begins with."""
    first, end, begins = int(batch.q_indptr[n]), int(batch.q_indptr[n + 1]), int(reads[n])
    ends = (np.flatnonzero(writes[first : end - 1] != NONE) + first + 1).tolist()
    parts = []
    for last in (*ends, end):
        leaves = int(writes[last - 1])
        parts.append(_Part(n, first, last, begins, leaves))
        first, begins = last, leaves
    return parts


def _piece(batch: Forward, parts: Sequence[_Part]) -> Piece:
    sequences = [part.sequence for part in parts]
    rows = np.concatenate([np.arange(part.first, part.last) for part in parts])
    runs = [_runs(batch, part) for part in parts]
    places = np.full(len(batch.q_slots), -1, np.int32)
    places[rows] = np.arange(len(rows))
    kept = places[batch.out_rows] >= 0
    counts = [part.last - part.first for part in parts]
    writes = np.full(len(rows), NONE, np.int32)
    writes[np.cumsum(counts) - 1] = [part.writes for part in parts]
    piece = msgspec.structs.replace(
        batch,
        q_indptr=_ends(counts),
        q_embeds=batch.q_embeds[rows],
        q_positions=batch.q_positions[rows],
        q_slots=batch.q_slots[rows],
        kv_indptr=_ends([len(pages) for pages, _, _ in runs]),
        kv_pages=np.concatenate([pages for pages, _, _ in runs]),
        kv_begins=np.concatenate([begins for _, begins, _ in runs]),
        kv_ends=np.concatenate([ends for _, _, ends in runs]),
        dense=batch.dense[sequences],
        out_rows=places[batch.out_rows[kept]],
        out_embeds=batch.out_embeds[kept],
        adapters=None if batch.adapters is None else batch.adapters[sequences],
        state_reads=np.array([part.reads for part in parts], np.int32),
        state_writes=writes,
    )
    return Piece(piece, sequences)


def _runs(batch: Forward, part: _Part) -> tuple[Array, Array, Array]:
    """Pages, begins and ends of the keys up to the last row of a part."""
    own = slice(batch.kv_indptr[part.sequence], batch.kv_indptr[part.sequence + 1])
    pages, begins, ends = batch.kv_pages[own], batch.kv_begins[own], batch.kv_ends[own]
    later = int(batch.q_indptr[part.sequence + 1]) - part.last
    if not later:
        return pages, begins, ends
    before = np.cumsum(ends - begins) - (ends - begins)
    left = int((ends - begins).sum()) - later
    kept = before < left
    return pages[kept], begins[kept], np.minimum(ends, begins + left - before)[kept].astype(np.int32)


def _ends(counts: Sequence[int]) -> Array:
    return np.cumsum([0, *counts], dtype=np.int32)
