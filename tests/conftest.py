"""Fixtures that several test modules share."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from pie_control import host_api
from pie_control.programs.launcher import ComponentHost
from pie_control.programs.store import ProgramStore
from pie_inference.testing.triton_interpreter import Interpreter, running_interpreter


@pytest.fixture(scope="session")
def kernel_cache(pytestconfig: pytest.Config) -> Path:
    """A cache folder for compiled kernels, kept from run to run."""
    assert pytestconfig.cache is not None
    return Path(pytestconfig.cache.mkdir("kernels"))


@pytest.fixture(scope="session")
def guest_cache(pytestconfig: pytest.Config) -> Path:
    """A cache folder with the Python guest built and compiled, kept from run to run."""
    assert pytestconfig.cache is not None
    folder = Path(pytestconfig.cache.mkdir("pie"))
    host = ComponentHost(folder, host_api.functions(), 256 << 20, warm_instances=0)
    asyncio.run(host.start(ProgramStore(folder)))
    host.close()
    return folder


@pytest.fixture(scope="session")
def interpreter() -> Iterator[Interpreter]:
    """A process in which Triton kernels run on the CPU."""
    pytest.importorskip("triton")
    with running_interpreter() as running:
        yield running
