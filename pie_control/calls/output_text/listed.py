"""Tokens that the commands of a batch list, and what the worker says of each."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..arrays import as_int32, ends_of
from ..tokens import MOST_LISTED


class Logprobs(NamedTuple):
    """What the future gives."""

    logprobs: NDArray[np.float32]  # one for each token asked for


class Listed:
    """The lists of a batch, one for each command."""

    def __init__(self) -> None:
        self._lists: list[Sequence[int]] = []
        self._length = 0

    def has_room(self, tokens: Sequence[int]) -> bool:
        """Whether a further list fits; the first one does."""
        return not self._length or self._length + len(tokens) <= MOST_LISTED

    def add(self, tokens: Sequence[int]) -> None:
        self._lists.append(tokens)
        self._length += len(tokens)

    def tokens(self) -> NDArray[np.int32]:
        """The tokens of all lists, one behind the other."""
        return as_int32(list(chain.from_iterable(self._lists)))

    def ends(self) -> NDArray[np.int32]:
        """A 0, and where each list ends."""
        return ends_of(map(len, self._lists))

    def split(self, logprobs: NDArray[np.generic]) -> Sequence[Logprobs] | None:
        """Those of each list; None if they are not as many as tokens."""
        if len(logprobs) != self._length:
            return None
        told, ends = logprobs.astype(np.float32, copy=False), pairwise(self.ends().tolist())
        return [Logprobs(told[begin:end].copy()) for begin, end in ends]  # a view keeps the whole wave's
