"""One server for all clients: sandbox, hosts and HTTP are real; the model is one without weights."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.live_server import live_server


@pytest.fixture(scope="package")
def server(guest_cache: Path) -> Iterator[str]:
    with live_server(guest_cache) as url:
        yield url
