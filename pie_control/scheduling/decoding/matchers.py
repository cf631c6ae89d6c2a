"""What steps of decode runs say of their matchers, which are at the worker (pie_inference/grammars/rows.py)."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np
from numpy.typing import NDArray

from pie_control.calls.columns import MatcherColumns
from pie_control.calls.fused.matching import Constraint
from pie_inference.protocol import GrammarStart


class StepMatchers:
    """Matchers have the serial numbers of their runs. The worker keeps one until it hears that it is not needed."""

    def __init__(self) -> None:
        self._ended: list[int] = []

    def __bool__(self) -> bool:
        """Whether the worker should hear of ends."""
        return bool(self._ended)

    def end(self, serial: int) -> None:
        """A run with a matcher is over. Steps of it may be in flight still, but none goes from now on."""
        self._ended.append(serial)

    def columns(
        self, serials: NDArray[np.int64], steps: NDArray[np.int32], constraint_of: Callable[[int], Constraint | None]
    ) -> MatcherColumns | None:
        """For rows that sample: the numbers of their matchers (0: none), and the steps that their runs have taken.
        `constraint_of` gives that of the run in a row."""
        if not (self._ended or serials.any()):
            return None
        starts = [b""] * len(serials)
        for row in ((serials > 0) & (steps == 0)).nonzero()[0].tolist():
            one = constraint_of(row)
            assert one is not None
            starts[row] = msgspec.msgpack.encode(GrammarStart(one.source, list(one.accepted), one.skip))
        ended, self._ended = self._ended, []
        return MatcherColumns(
            serials,
            steps.astype(np.int32),
            np.array([len(start) for start in starts], np.int32),
            b"".join(starts),
            np.array(ended, np.int64),
        )
