"""What waits for a full collection of garbage: a test that counts objects must not count those of tests before it."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def without_collections(*kinds: type[Any]) -> Iterator[Callable[[], list[Any]]]:
    """Nobody collects garbage inside. Gives a function that returns the objects of `kinds` which have come since and
    are still there."""
    gc.collect()
    before = [one for one in gc.get_objects() if isinstance(one, kinds)]
    known = set(map(id, before))

    def left() -> list[Any]:
        return [one for one in gc.get_objects() if isinstance(one, kinds) and id(one) not in known]

    gc.disable()
    try:
        yield left
    finally:
        gc.enable()
