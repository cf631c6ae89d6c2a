"""The slots of states that a `Forward` names, checked."""

from __future__ import annotations

import numpy as np
import torch

from ..errors import BatchError
from ..protocol import Array, Forward, check_indptr
from .interface import NONE, Runs


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
