"""Fixtures of the tests of the SDK."""

from __future__ import annotations

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
