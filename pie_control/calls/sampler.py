"""Samplers: how tokens are chosen, and the random numbers for it."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import msgspec
import numpy as np
from numpy.typing import NDArray

from pie_control.errors import InvalidArgument
from pie_control.record import Record


class SamplingParams(Record, frozen=True, tag=None):
    """How a token is chosen (fused.wit, create-sampler)."""

    temperature: float = 1.0  # 0: greedy
    top_k: int = 0  # 0: all
    top_p: float = 1.0  # 1: all
    min_p: float = 0.0  # 0: all
    repetition: float = 1.0  # 1: none
    frequency: float = 0.0  # 0: none
    presence: float = 0.0  # 0: none
    typical_p: float = 1.0  # 1: all

    def check(self) -> None:
        """Raises InvalidArgument if one is out of range."""
        _check("temperature", self.temperature, 0.0, 1e6)
        _check("top_k", self.top_k, 0, 2**31 - 1)
        _check("top_p", self.top_p, 1e-9, 1.0)
        _check("min_p", self.min_p, 0.0, 1.0)
        _check("repetition_penalty", self.repetition, 1e-6, 1e6)
        _check("frequency_penalty", self.frequency, -1e6, 1e6)
        _check("presence_penalty", self.presence, -1e6, 1e6)
        _check("typical_p", self.typical_p, 1e-9, 1.0)

    @property
    def has_penalties(self) -> bool:
        return (self.repetition, self.frequency, self.presence) != (1.0, 0.0, 0.0)


def _check(name: str, value: float, smallest: float, largest: float) -> None:
    if not smallest <= value <= largest:
        raise InvalidArgument(f"{name} is {value}; it must lie between {smallest} and {largest}")


NUM_PARAMS = len(SamplingParams.__struct_fields__)


MOST_BIASED = 512
"""Tokens with a bias in one sampler. It travels with each sample."""
BIAS_BYTES = 8
"""Memory of one."""
LARGEST_BIAS = 1000.0
"""More than logits differ; with much more, float32 would not tell biased tokens apart."""


class Bias(Record, frozen=True, tag=None, eq=False):
    """What is added to the logits of some tokens."""

    tokens: NDArray[np.int32]  # no token twice
    values: NDArray[np.float32]

    @property
    def fits(self) -> bool:
        """Whether there is a value for each token, and not more than there may be."""
        return len(self.tokens) == len(self.values) <= MOST_BIASED

    def check(self, vocabulary: int) -> None:
        """Raises InvalidArgument if one is no token of the model."""
        largest = int(self.tokens.max(initial=0))
        if largest >= vocabulary:
            raise InvalidArgument(
                f"logit_bias names token {largest}, which is outside of the vocabulary of {vocabulary} tokens"
            )


def make_bias(given: Sequence[tuple[int, float]]) -> Bias | None:
    """From tokens and what is added to their logits. Raises InvalidArgument."""
    if len(given) > MOST_BIASED:
        raise InvalidArgument(f"logit_bias has {len(given)} tokens, more than {MOST_BIASED}")
    for token, value in given:
        if not 0 <= token < 2**31:
            raise InvalidArgument(f"logit_bias: {token} is no token")
        _check(f"logit_bias of token {token}", value, -LARGEST_BIAS, LARGEST_BIAS)
    if len({token for token, _ in given}) < len(given):
        raise InvalidArgument("logit_bias names a token twice")
    if not given:
        return None
    return Bias(np.array([token for token, _ in given], np.int32), np.array([value for _, value in given], np.float32))


def bias_arrays(biases: Sequence[Bias | None]) -> dict[str, NDArray[np.generic]]:
    """The biases of a batch as the arrays of its message; none if no row has one."""
    some = [bias for bias in biases if bias is not None]
    if not some:
        return {}
    return {
        "bias_indptr": np.array([0, *accumulate(0 if bias is None else len(bias.tokens) for bias in biases)], np.int32),
        "bias_tokens": np.concatenate([bias.tokens for bias in some]),
        "bias_values": np.concatenate([bias.values for bias in some]),
    }


class Sampler:
    """Parameters and random numbers. The n-th token of a seed is always the same draw, so tokens do not depend on what
    else is batched."""

    __slots__ = ("_draws", "_made", "_returned", "_seed", "bias", "bytes", "params")

    def __init__(self, params: SamplingParams, seed: int | None, bias: Bias | None = None) -> None:
        """Raises InvalidArgument."""
        params.check()
        self.params = params
        self.bias = bias
        self.bytes = BIAS_BYTES * len(bias.tokens) if bias is not None else 0
        """What a command that names it keeps, about."""
        self._seed = seed
        self._made: Callable[[], float] | None = None
        self._draws = 0
        self._returned: deque[float] = deque()

    @property
    def _random(self) -> Callable[[], float]:
        """Made when it is first needed: greedy sampling draws nothing, and the state of one takes 2.5 KB."""
        if self._made is None:
            self._made = random.Random(self._seed).random
        return self._made

    def draw(self) -> float:
        """A number in [0, 1)."""
        self._draws += 1
        return self._returned.popleft() if self._returned else self._random()

    def draw_many(self, count: int) -> Draws:
        """Numbers that may turn out not to be needed, but for the first ones."""
        self._draws += count
        returned = min(count, len(self._returned))
        numbers = [self._returned.popleft() for _ in range(returned)]
        random = self._random
        return Draws(self, (*numbers, *[random() for _ in range(count - returned)]), self._draws)

    def take_back(self, unused: tuple[float, ...], made: int) -> None:
        """Draws that were not needed come next, unless others were made after them."""
        if self._draws == made:
            self._draws -= len(unused)
            self._returned.extendleft(reversed(unused))


@dataclass(slots=True)
class Draws:
    """Several draws of one sampler."""

    sampler: Sampler
    numbers: tuple[float, ...]
    made: int  # draws of the sampler, these included

    def use(self, count: int) -> None:
        """The first `count` were needed, and no others; told again if they turn out to be fewer."""
        unused, self.numbers = self.numbers[count:], self.numbers[:count]
        self.sampler.take_back(unused, self.made)
        self.made -= len(unused)


def param_rows(rows: Iterable[SamplingParams]) -> NDArray[np.float64]:
    """Parameters of a batch, one row each."""
    return np.array(list(map(msgspec.structs.astuple, rows)), np.float64).reshape(-1, NUM_PARAMS)


_PLAIN = np.array(msgspec.structs.astuple(SamplingParams(temperature=-1.0)), np.float64)
"""What changes nothing; a temperature always counts."""


def _kind(name: str) -> type[np.generic]:
    return np.int32 if name == "top_k" else np.float32


Columns = Mapping[str, NDArray[np.generic]]


def param_columns(rows: NDArray[np.float64]) -> Columns:
    """An array for each parameter that changes something for a row."""
    changed = (rows != _PLAIN).any(0).tolist()
    names = zip(SamplingParams.__struct_fields__, rows.T, changed, strict=True)
    return {name: column.astype(_kind(name)) for name, column, one in names if one}


def join_params(one: Columns, count: int, other: Columns, more: int) -> Columns:
    """The columns of `count` rows with those of `more` rows behind them, as `param_columns` makes both."""
    if not count or not more:
        return one or other
    plain = dict(zip(SamplingParams.__struct_fields__, _PLAIN, strict=True))

    def column(of: Columns, rows: int, name: str) -> NDArray[np.generic]:
        return of[name] if name in of else np.full(rows, plain[name], _kind(name))

    return {name: np.concatenate((column(one, count, name), column(other, more, name))) for name in {**one, **other}}
