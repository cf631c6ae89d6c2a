"""Masks of the next steps of runs, made together on a thread while the processor runs the forward between."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from .engine import ManyMasks, Vocabulary
from .runs import MatchedRun

LEAST_WORDS = 256
"""Of all masks together: fewer are made in the time in which a thread is woken."""


class MasksAhead:
    """From `begin` to `settle`, the matchers of these runs belong to the thread."""

    def __init__(self, wanted: bool) -> None:
        """`wanted`: False where no processor is free for it."""
        self._wanted = wanted
        self._threads: ThreadPoolExecutor | None = None
        self._going: Future[None] | None = None
        self._many: ManyMasks | None = None

    def begin(self, runs: Sequence[MatchedRun], vocabulary: Vocabulary) -> None:
        """Makes the mask of each run, where there is enough to do."""
        self.settle()
        if not self._wanted or not runs or len(runs) * vocabulary.words < LEAST_WORDS:
            return
        if self._threads is None:
            self._threads = ThreadPoolExecutor(1, "masks")
        self._going = self._threads.submit(self._make, runs, vocabulary)

    def settle(self) -> None:
        """Waits until they are made."""
        if self._going is not None:
            self._going.result()
            self._going = None

    def _make(self, runs: Sequence[MatchedRun], vocabulary: Vocabulary) -> None:
        """A run that gets none fails in its next step, which says why."""
        if self._many is None:
            self._many = ManyMasks()
        masks = vocabulary.masks(len(runs))
        written = self._many.write([run.matcher for run in runs], masks)
        for run, mask, is_written in zip(runs, masks, written, strict=True):
            if is_written:
                run.mask = mask
