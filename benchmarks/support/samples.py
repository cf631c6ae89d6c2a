"""Statistics of samples."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def percentile(samples: Sequence[float], percent: float) -> float:
    """The percentile of samples, interpolated linearly between the two closest."""
    return float(np.percentile(samples, percent))


def median(samples: Sequence[float]) -> float:
    return percentile(samples, 50)


def together(streams: Sequence[Sequence[float]]) -> float:
    """Seconds for a token while all streams run, by the times of their tokens: the median over the streams. Raises
    RuntimeError if they run together for less than half of their tokens: what is left is too short to tell."""
    begin, end = max(times[0] for times in streams), min(times[-1] for times in streams)
    inside = [[time for time in times if begin <= time <= end] for times in streams]
    if (least := min(map(len, inside))) < 2 or 2 * least < len(streams[0]):
        raise RuntimeError("the streams ran together for less than half of their tokens: take more --tokens")
    return median([(times[-1] - times[0]) / (len(times) - 1) for times in inside])
