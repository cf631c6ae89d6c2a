"""Recurrences by plain torch operations, for any device. They are the reference for kernels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from .interface import NONE, Runs

CHUNK = 64
"""Rows that one product takes together."""
EPS = 1e-6
"""Under the root of a length."""


class TorchRecurrences:
    """Implements `Recurrences`. It reads the batch's numbers back to the host unless each sequence has one row."""

    def __init__(self, chunk: int = CHUNK) -> None:
        self._chunk = chunk

    def convolve(self, rows: Tensor, taps: Tensor, states: Tensor, runs: Runs) -> Tensor:
        wide, width = rows.to(states.dtype), len(taps)
        if runs.longest == 1:
            inputs = torch.cat([_read(states, runs.reads), wide.unsqueeze(1)], 1)
            _write(states, runs.writes, inputs[:, 1:])
            sums = (inputs * taps).sum(1)
        else:
            sums = torch.empty_like(wide)
            for part, read, writes in _sequences(runs):
                inputs = torch.cat([_read(states, read)[0], wide[part]])
                windows = inputs.unfold(0, width, 1)  # [rows, C, W]
                sums[part] = torch.einsum("tcw,wc->tc", windows, taps)
                for row in (writes != NONE).nonzero().flatten().tolist():
                    states[writes[row]] = inputs[row + 1 : row + width]
        return F.silu(sums).to(rows.dtype)

    def gated_delta(
        self, query: Tensor, key: Tensor, value: Tensor, decay: Tensor, beta: Tensor, states: Tensor, runs: Runs
    ) -> Tensor:
        share = value.shape[1] // key.shape[1]
        query, key = (_unit(each.to(states.dtype)).repeat_interleave(share, 1) for each in (query, key))
        query = query * key.shape[-1] ** -0.5
        wide, beta = value.to(states.dtype), beta.unsqueeze(-1)
        if runs.longest == 1:
            rows = [each.unsqueeze(2) for each in (query, key, wide, decay, beta)]
            results, after = _advance(rows, _read(states, runs.reads))
            _write(states, runs.writes, after)
            return results.squeeze(2).to(value.dtype)
        output = torch.empty_like(value, memory_format=torch.contiguous_format)
        for part, read, writes in _sequences(runs):
            state = _read(states, read)
            rows = [each[part].transpose(0, 1).unsqueeze(0) for each in (query, key, wide, decay, beta)]
            for first, last in self._pieces(writes):
                results, state = _advance([each[:, :, first:last] for each in rows], state)
                output[part][first:last] = results[0].transpose(0, 1).to(value.dtype)
                _write(states, writes[last - 1 : last], state)
        return output

    def _pieces(self, writes: Tensor) -> Iterator[tuple[int, int]]:
        """Rows [first, last) of a sequence that one product takes: they end where a state is left."""
        first = 0
        for row, slot in enumerate(writes.tolist(), 1):
            if slot != NONE or row - first == self._chunk or row == len(writes):
                yield first, row
                first = row


def _advance(rows: Sequence[Tensor], state: Tensor) -> tuple[Tensor, Tensor]:
    """Results and the last state of some rows at once, by the UT transform (Yang et al. 2024, section 3.3).

    rows: query, key and value [N, heads, rows, dim], decay [N, heads, rows] and beta [N, heads, rows, 1]. state:
    [N, heads, K, V].
    """
    query, key, value, decay, beta = rows
    total = decay.cumsum(-1)
    since = total.unsqueeze(-1) - total.unsqueeze(-2)
    upper = torch.ones_like(since[0, 0], dtype=torch.bool).triu(1)
    since = since.masked_fill(upper, -torch.inf).exp()
    reached = total.exp().unsqueeze(-1)
    system = beta * (key @ key.transpose(-1, -2)) * since
    wanted = beta * (value - reached * (key @ state))
    change = torch.linalg.solve_triangular(system, wanted, upper=False, unitriangular=True)
    results = reached * (query @ state) + (query @ key.transpose(-1, -2) * since) @ change
    left = (total[..., -1:] - total).exp().unsqueeze(-1)
    return results, reached[:, :, -1:] * state + (key * left).transpose(-1, -2) @ change


def _unit(vectors: Tensor) -> Tensor:
    return vectors * torch.rsqrt(vectors.square().sum(-1, keepdim=True) + EPS)


def _read(states: Tensor, slots: Tensor) -> Tensor:
    """The states of slots [N], zeros for NONE."""
    found = states[slots.clamp(min=0)]
    return torch.where((slots != NONE).view(-1, *[1] * (found.dim() - 1)), found, found.new_zeros(()))


def _write(states: Tensor, slots: Tensor, values: Tensor) -> None:
    """Leaves values [N, ...] in slots [N], except for NONE."""
    kept = slots != NONE
    states[slots[kept]] = values[kept.to(values.device)]


def _sequences(runs: Runs) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """The rows of each sequence, the slot that it reads [1], and those that its rows write, on the host."""
    starts, writes = runs.starts.tolist(), runs.writes.cpu()
    for number, (first, last) in enumerate(pairwise(starts)):
        yield slice(first, last), runs.reads[number : number + 1], writes[first:last]
