"""A random batch that tests implementations of `Recurrences` on any device, with its solution in float64 on the CPU.

It needs only torch and this package, so that other machines can use it too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pie_inference.recurrence.interface import NONE, Recurrences, Runs
from pie_inference.recurrence.torch_recurrences import TorchRecurrences

TOLERANCE = {torch.float32: 5e-6, torch.float16: 1.5e-3, torch.bfloat16: 1e-2}
"""Largest error relative to the largest number."""
SLOTS = 16


@dataclass(frozen=True)
class Sizes:
    """Sizes of a layer."""

    key_heads: int
    heads: int
    key_dim: int
    value_dim: int
    width: int = 4

    @property
    def channels(self) -> int:
        """Queries, keys and values of all heads."""
        return 2 * self.key_heads * self.key_dim + self.heads * self.value_dim


SIZES = (Sizes(2, 4, 16, 24), Sizes(1, 3, 32, 16, width=2), Sizes(2, 2, 24, 40, width=3))
COUNTS = (1, 23, 70, 5, 1, 2)
READS = (NONE, 3, 0, NONE, 5, 6)
LAST = (1, 2, 4, NONE, 5, 6)
"""Slots of the last rows: new ones, none where nobody needs the state, and those that were read."""
WITHIN = {10: 7, 94: 8, 95: 9, 96: 10, 97: 11}
"""Slots of other rows: in the middle of the second text, and of each row of the fourth but the last."""


@dataclass(frozen=True)
class Problem:
    """Inputs of both recurrences of a layer, and states."""

    mixed: Tensor  # [T, channels]
    taps: Tensor
    decay: Tensor
    beta: Tensor
    inputs: Tensor  # [SLOTS, width - 1, channels]
    states: Tensor  # [SLOTS, heads, key_dim, value_dim]
    runs: Runs

    def to(self, dtype: torch.dtype, device: torch.device) -> Problem:
        """The same numbers in the dtypes of a model in `dtype`. States get memory of their own."""
        wide = torch.promote_types(dtype, torch.float32)
        kept = {
            name: getattr(self, name).to(device, wide, copy=True)
            for name in ("taps", "decay", "beta", "inputs", "states")
        }
        starts, reads, writes = (each.to(device) for each in (self.runs.starts, self.runs.reads, self.runs.writes))
        runs = Runs(starts, reads, writes, self.runs.longest)
        return replace(self, mixed=self.mixed.to(device, dtype), runs=runs, **kept)


def make_problem(
    sizes: Sizes, dtype: torch.dtype, counts: Sequence[int] = COUNTS, reads: Sequence[int] = READS,
    last: Sequence[int] = LAST, within: dict[int, int] | None = None,
) -> Problem:  # fmt: skip
    """A batch in float64 whose rows are numbers of `dtype`."""
    generator = torch.Generator().manual_seed(sizes.channels)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    rows = sum(counts)
    writes = [NONE] * rows
    for row, slot in (WITHIN if within is None else within).items():
        writes[row] = slot
    end = 0
    for count, slot in zip(counts, last, strict=True):
        end += count
        writes[end - 1] = slot
    return Problem(
        mixed=random(rows, sizes.channels).to(dtype).double(),
        taps=random(sizes.width, sizes.channels).float().double(),
        decay=-random(rows, sizes.heads).float().double().exp(),
        beta=random(rows, sizes.heads).float().double().sigmoid(),
        inputs=random(SLOTS, sizes.width - 1, sizes.channels).float().double(),
        states=random(SLOTS, sizes.heads, sizes.key_dim, sizes.value_dim).float().double(),
        runs=Runs.make(counts, reads, writes, torch.device("cpu")),
    )


def few_rows(sizes: Sizes, dtype: torch.dtype) -> Problem:
    """Like the problem by default, with fewer rows."""
    within = {3: 7, 27: 8, 28: 9, 29: 10, 30: 11}
    return make_problem(sizes, dtype, [1, 7, 19, 5, 1, 2], within=within)


def convolved(found: Recurrences, problem: Problem) -> Tensor:
    """Runs the convolution; states change in place."""
    return found.convolve(problem.mixed, problem.taps, problem.inputs, problem.runs)


def ruled(found: Recurrences, sizes: Sizes, problem: Problem) -> Tensor:
    """Runs the gated delta rule; states change in place. Queries, keys and values are views of one tensor."""
    shared = sizes.key_heads * sizes.key_dim
    parts = torch.split(problem.mixed, [shared, shared, sizes.heads * sizes.value_dim], 1)
    query, key, value = (
        torch.unflatten(part, 1, (-1, dim))
        for part, dim in zip(parts, (sizes.key_dim, sizes.key_dim, sizes.value_dim), strict=True)
    )
    return found.gated_delta(query, key, value, problem.decay, problem.beta, problem.states, problem.runs)


def assert_equals_definition(
    found: Recurrences, sizes: Sizes, problem: Problem, dtype: torch.dtype, device: torch.device
) -> None:
    """Both recurrences, and all states afterwards, against float64 row by row."""
    exact, given = problem.to(torch.float64, torch.device("cpu")), problem.to(dtype, device)
    one_by_one = TorchRecurrences(chunk=1)
    pairs = [
        (convolved(found, given), convolved(one_by_one, exact), dtype),
        (ruled(found, sizes, given), ruled(one_by_one, sizes, exact), dtype),
        (given.inputs, exact.inputs, torch.float32),
        (given.states, exact.states, torch.float32),
    ]
    for actual, expected, kind in pairs:
        assert actual.shape == expected.shape
        error = float((actual.cpu().double() - expected).abs().max() / expected.abs().max())
        assert error < TOLERANCE[kind], error
