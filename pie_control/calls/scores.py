"""Log-probabilities of a token that was chosen, and of the most probable ones beside it, where they were asked for."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from pie_control.errors import InvalidArgument
from pie_control.record import Record
from pie_inference.protocol import SampleResult

MOST_ALTERNATIVES = 32
"""For each token. For more there are distributions."""
NO_SCORES = -1
"""Instead of a number of alternatives: not even the log-probability of the token."""


class Scores(Record, frozen=True, tag=None, eq=False):
    """The token itself first, then the alternatives, most probable first. The log-probabilities are the model's own,
    whatever the sampler is."""

    tokens: NDArray[np.int32]
    logprobs: NDArray[np.float32]


def check_alternatives(count: int) -> None:
    """Raises InvalidArgument."""
    if not 0 <= count <= MOST_ALTERNATIVES:
        raise InvalidArgument(
            f"{count} alternatives of a token are asked for; there may be 0 to {MOST_ALTERNATIVES}: "
            "get-next-dist gives more"
        )


def scores_fit(result: SampleResult, asked: bool) -> bool:
    """Whether there are scores if a row asked for them, and none else, and their arrays fit together."""
    if not asked or result.score_indptr is None or result.scored is None or result.logprobs is None:
        return not asked and result.score_indptr is None
    ends = result.score_indptr
    fits = len(ends) == len(result.tokens) + 1 and bool((np.diff(ends) >= 0).all())
    return fits and int(ends[-1]) == len(result.scored) == len(result.logprobs)


def read_scores(result: SampleResult, first: int, last: int) -> Iterator[tuple[int, Scores]]:
    """Rows among `first` .. `last` that asked, and what they get. Copies: a view keeps those of the whole wave."""
    if result.score_indptr is None or result.scored is None or result.logprobs is None:
        return
    ends = result.score_indptr[first : last + 1]
    tokens, logprobs = result.scored.astype(np.int32, copy=False), result.logprobs.astype(np.float32, copy=False)
    for row in np.diff(ends).nonzero()[0].tolist():
        begin, end = ends[row], ends[row + 1]
        yield first + row, Scores(tokens[begin:end].copy(), logprobs[begin:end].copy())
