"""A headless Chromium for tests, which skip where there is none."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from testing.browser import NAMES, Page, chromium, find_chromium


@contextlib.contextmanager
def chromium_or_skip() -> Iterator[Page]:
    """A page in a Chromium of its own."""
    path = find_chromium()
    if path is None:
        pytest.skip(f"there is no Chromium here ({', '.join(NAMES)})")
    with chromium(path) as page:
        yield page
