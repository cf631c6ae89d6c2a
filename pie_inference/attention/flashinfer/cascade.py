"""Decode of sequences that begin with the same pages. One kernel reads these pages once for the queries of all the
sequences. Another reads the rest of each sequence. The two results are merged by the sums of their weights (Ye et al.
2024, "Cascade Inference")."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from ...kv_cache.pages import KvShape
from ..interface import AttentionSpec
from ..page_tables import PageTable, indptr_of, ranges, shared_prefixes, take
from ..ragged import Integers
from .kernels import Kernel, Kernels, Views

WORTHWHILE_BYTES = 64 << 20
"""Least bytes of keys and values that a cascade must save in one layer. This is a rule of thumb, not measured: a
cascade runs three kernels instead of one, which costs about 15 microseconds; a current GPU reads 50 to 70 MB in that
time."""


@dataclass(frozen=True)
class CascadeTables:
    """The tables of both kernels. `shared` has one sequence for each group, with the queries of its members. `rest` has
    the remaining keys of all sequences; the members come first, group by group."""

    shared: PageTable
    rest: PageTable


def find_cascade(table: PageTable, shape: KvShape, worthwhile: int) -> CascadeTables | None:
    """How to split a decode batch; None if that saves fewer than `worthwhile` bytes."""
    groups = list(shared_prefixes(table)) if len(table) > 1 else []
    if saved_bytes(groups, table.page_size, shape) < worthwhile or not groups:
        return None
    return _split(table, groups)


def saved_bytes(groups: list[tuple[Integers, int]], page_size: int, shape: KvShape) -> int:
    """Bytes of keys and values of one layer that need not be read again when each group reads its pages once."""
    slot = 2 * shape.num_kv_heads * shape.head_dim * shape.dtype.itemsize
    return sum((len(members) - 1) * pages for members, pages in groups) * page_size * slot


def _split(table: PageTable, groups: list[tuple[Integers, int]]) -> CascadeTables:
    skipped = np.zeros(len(table), np.int64)
    for members, pages in groups:
        skipped[members] = pages
    order = np.concatenate([*(members for members, _ in groups), np.flatnonzero(skipped == 0)])
    return CascadeTables(_shared(table, groups, order), _rest(table, skipped, order))


def _shared(table: PageTable, groups: list[tuple[Integers, int]], order: Integers) -> PageTable:
    sizes = np.array([len(members) for members, _ in groups])
    pages = np.array([pages for _, pages in groups])
    starts = table.indptr[[members[0] for members, _ in groups]]
    return PageTable(
        sequences=np.arange(len(groups)),
        rows=table.rows[order[: sizes.sum()]],
        q_indptr=indptr_of(sizes),
        indptr=indptr_of(pages),
        indices=table.indices[ranges(starts, pages)],
        last_page_len=np.full(len(groups), table.page_size, np.int32),
        num_keys=(pages * table.page_size).astype(np.int32),
        page_size=table.page_size,
    )


def _rest(table: PageTable, skipped: Integers, order: Integers) -> PageTable:
    starts, lengths = table.indptr[:-1][order] + skipped[order], np.diff(table.indptr)[order] - skipped[order]
    return replace(
        table,
        sequences=table.sequences[order],
        rows=table.rows[take(table.q_indptr, order)[0]],
        indptr=indptr_of(lengths),
        indices=table.indices[ranges(starts, lengths)],
        last_page_len=table.last_page_len[order],
        num_keys=(table.num_keys[order] - skipped[order] * table.page_size).astype(np.int32),
    )


class Cascade:
    """Both kernels, planned."""

    def __init__(self, kernels: Kernels, spec: AttentionSpec, tables: CascadeTables) -> None:
        self._merge = kernels.library.merge_in_place
        self._sharing = len(tables.shared.rows)
        self._shared: Kernel = kernels.prefix(tables.shared.page_size, spec)
        self._shared.plan_prefill(tables.shared, causal=False)
        self._rest: Kernel = kernels.decode(tables.rest.page_size, spec)
        self._rest.plan_decode(tables.rest)

    def run(self, query: Tensor, views: Views, out: Tensor) -> None:
        """Like `Kernel.run`, with rows in the order of `CascadeTables.rest`."""
        lse = self._rest.run_with_lse(query, views, out)
        first = slice(0, self._sharing)
        shared = torch.empty(out[first].shape, dtype=out.dtype, device=out.device)
        shared_lse = self._shared.run_with_lse(query[first], views, shared)
        self._merge(out[first], lse[first], shared, shared_lse)
