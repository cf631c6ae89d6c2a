"""Statistics of samples."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def percentile(samples: Sequence[float], percent: float) -> float:
    """The percentile of samples, interpolated linearly between the two closest."""
    return float(np.percentile(samples, percent))


def median(samples: Sequence[float]) -> float:
    return percentile(samples, 50)


def together(streams: Sequence[Sequence[float]], counts: Sequence[Sequence[int]] = ()) -> float:
    """Seconds for a token while all streams run, by the times of their texts: the median over the streams. `counts`:
    how many tokens each had with each text; none given: one more each time. Raises RuntimeError if they run together
    for less than half of their tokens: what is left is too short to tell."""
    begin, end = max(times[0] for times in streams), min(times[-1] for times in streams)
    found = []
    for times, its in zip(streams, counts or [range(len(times)) for times in streams], strict=True):
        inside = [(time, count) for time, count in zip(times, its, strict=True) if begin <= time <= end]
        tokens = inside[-1][1] - inside[0][1] if inside else 0
        if tokens < 1 or 2 * tokens < its[-1] - its[0]:
            raise RuntimeError("the streams ran together for less than half of their tokens: take more --tokens")
        found.append((inside[-1][0] - inside[0][0]) / tokens)
    return median(found)
