"""One server for the programs of all tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pie_control.authoring.native.server import NativeServer, native_server
from pie_control.config import build_config


@pytest.fixture(scope="package")
def server() -> Iterator[NativeServer]:
    with native_server(build_config({}).resolved()) as server:
        yield server
