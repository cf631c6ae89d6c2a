"""Fixtures that several test modules share."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def guest_cache(pytestconfig: pytest.Config) -> Path:
    """A cache folder that keeps the built and compiled Python guest from run to run."""
    assert pytestconfig.cache is not None
    return Path(pytestconfig.cache.mkdir("pie"))
