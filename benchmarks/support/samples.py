"""Numbers of samples."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def percentile(samples: Sequence[float], percent: float) -> float:
    """Linear interpolation between the closest samples."""
    return float(np.percentile(samples, percent))


def median(samples: Sequence[float]) -> float:
    return percentile(samples, 50)
