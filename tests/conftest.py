"""Fixtures that several test modules share.

What is compiled is kept in pytest's cache from run to run. Processes that run tests beside each other (pytest-xdist)
share it; a lock lets one compile while the others wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from filelock import FileLock
from hypothesis import HealthCheck, settings

from pie_control.programs.python_guest import compiled_guest
from pie_control.programs.store import ProgramStore
from pie_inference.cpu_kernels.build import build
from pie_inference.errors import KernelsUnavailable
from pie_inference.testing.triton_interpreter import Interpreter, running_interpreter

if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # each of these processes has a core; read when torch is imported

settings.register_profile("tests", settings.default, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")  # how long an example takes says how much else the machine has to do


def pytest_configure(config: pytest.Config) -> None:
    """The default cache folder, of the tests and of what they start, is `cache_folder`, not the user's."""
    os.environ["XDG_CACHE_HOME"] = str(cache_folder(config).parent)


def cache_folder(config: pytest.Config) -> Path:
    assert config.cache is not None
    return Path(config.cache.mkdir("pie"))


@pytest.fixture(scope="session")
def kernel_cache(pytestconfig: pytest.Config) -> Path:
    """A cache folder with the kernels compiled, where they can be."""
    folder = cache_folder(pytestconfig)
    with FileLock(folder / "kernels.lock"), contextlib.suppress(KernelsUnavailable):
        build(folder)
    return folder


@pytest.fixture(scope="session")
def guest_cache(pytestconfig: pytest.Config) -> Path:
    """A cache folder with the Python guest built and compiled."""
    folder = cache_folder(pytestconfig)
    with FileLock(folder / "guest.lock"):
        asyncio.run(compiled_guest(ProgramStore(folder).cache_dir))
    return folder


@pytest.fixture(scope="session")
def interpreter() -> Iterator[Interpreter]:
    """A process in which Triton kernels run on the CPU."""
    pytest.importorskip("triton")
    with running_interpreter() as running:
        yield running
