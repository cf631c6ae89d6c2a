"""Values that go in and out of the scheduler."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pie_control.errors import CallError, InvalidArgument


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How `sample` picks a token (fused.wit, sampler-config). Raises InvalidArgument if out of range."""

    temperature: float = 1.0  # 0: greedy
    top_k: int = 0  # 0: all
    top_p: float = 1.0  # 1: all
    min_p: float = 0.0  # 0: all
    repetition: float = 1.0  # 1: none
    frequency: float = 0.0  # 0: none
    presence: float = 0.0  # 0: none
    row: tuple[float, ...] = field(init=False, repr=False, compare=False)  # all of them in order

    def __post_init__(self) -> None:
        values = (self.temperature, self.top_k, self.top_p, self.min_p)
        penalties = (self.repetition, self.frequency, self.presence)
        object.__setattr__(self, "row", values + penalties)
        _check("temperature", self.temperature, 0.0, 1e6)
        _check("top-k", self.top_k, 0, 2**31 - 1)
        _check("top-p", self.top_p, 1e-9, 1.0)
        _check("min-p", self.min_p, 0.0, 1.0)
        _check("repetition-penalty", self.repetition, 1e-6, 1e6)
        _check("frequency-penalty", self.frequency, -1e6, 1e6)
        _check("presence-penalty", self.presence, -1e6, 1e6)


def _check(name: str, value: float, smallest: float, largest: float) -> None:
    if not smallest <= value <= largest:
        raise InvalidArgument(f"{name} is {value}; it must lie between {smallest} and {largest}")


def again(error: CallError) -> CallError:
    """The same error to raise once more, without the traceback of the other times."""
    return type(error)(*error.args)


class TokenValue(NamedTuple):
    """Of `sample`."""

    token: int


class Dist(NamedTuple):
    """Of `get_next_dist`."""

    tokens: NDArray[np.int32]  # [k], most probable first
    probabilities: NDArray[np.float32]  # [k]
    rest: float  # probability mass left out


class Logprobs(NamedTuple):
    """Of `get_logprobs`."""

    logprobs: NDArray[np.float32]  # one for each token asked for


class Done(NamedTuple):
    """Of `synchronize`."""


class Failed(NamedTuple):
    """The future has no value but this error."""

    error: CallError


Value = TokenValue | Dist | Logprobs | Done | Failed


class Completion(NamedTuple):
    """The answer to one future. With `future` None, the inferlet cannot go on (a command of it failed on the worker, so
    its KV cache is not what it thinks): sent once, and all its later calls raise the same error."""

    owner: int
    future: int | None
    value: Value
