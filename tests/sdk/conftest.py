"""Fixtures of the tests of the SDK."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from tests.helpers.native_host import NativeHost, close_last, install


@pytest.fixture
def host() -> NativeHost:
    return install()


@pytest.fixture(autouse=True)
def _close_hosts() -> Iterator[None]:
    yield
    close_last()


@pytest.fixture(autouse=True)
def _keep_main_module() -> Iterator[None]:
    """Programs that run here become the main module."""
    main = sys.modules["__main__"]
    yield
    sys.modules["__main__"] = main
