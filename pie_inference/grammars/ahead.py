"""Masks of the next steps of runs, made on a thread while the processor runs the forward between."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from .engine import Vocabulary
from .runs import MatchedRun
from .sources import GrammarError

LEAST_WORDS = 256
"""Of all masks together: fewer are made in the time in which a thread is woken."""


class MasksAhead:
    """From `begin` to `settle`, the matchers of these runs belong to the thread."""

    def __init__(self, wanted: bool) -> None:
        """`wanted`: False where no processor is free for it."""
        self._wanted = wanted
        self._threads: ThreadPoolExecutor | None = None
        self._going: Future[None] | None = None

    def begin(self, runs: Sequence[MatchedRun], vocabulary: Vocabulary) -> None:
        """Makes the mask of each run, where there is enough to do."""
        self.settle()
        if not self._wanted or len(runs) * vocabulary.words < LEAST_WORDS:
            return
        if self._threads is None:
            self._threads = ThreadPoolExecutor(1, "masks")
        self._going = self._threads.submit(_make, runs, vocabulary)

    def settle(self) -> None:
        """Waits until they are made."""
        if self._going is not None:
            self._going.result()
            self._going = None


def _make(runs: Sequence[MatchedRun], vocabulary: Vocabulary) -> None:
    masks = vocabulary.masks(len(runs))
    address, size = masks.ctypes.data, masks.strides[0]
    for place, run in enumerate(runs):
        try:
            run.matcher.write_mask(address + place * size)
        except GrammarError:
            continue  # the next step fails by it as well, and says why
        run.mask = masks[place]
