"""Statistics of samples."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def percentile(samples: Sequence[float], percent: float) -> float:
    """The percentile of samples, interpolated linearly between the two closest."""
    return float(np.percentile(samples, percent))


def median(samples: Sequence[float]) -> float:
    return percentile(samples, 50)
