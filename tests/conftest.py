"""Fixtures that several test modules share.

What is compiled is kept in pytest's cache from run to run. Processes that run tests beside each other (pytest-xdist)
share it; a lock lets one compile while the others wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import sys
from collections.abc import Generator, Iterator
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from pie_control.programs.python_guest import compiled_guest
from pie_control.programs.store import ProgramStore
from pie_inference.cpu_kernels.build import build
from pie_inference.errors import KernelsUnavailable
from testing.triton_interpreter import Interpreter, running_interpreter
from tests.helpers import tiers
from tests.helpers.fast_guard import guarded
from tests.helpers.fork_server import STARTERS, ForkServers
from tests.helpers.kernels import ISAS
from tests.helpers.tree import ROOT

if TYPE_CHECKING:
    from pie_inference.cpu_kernels.library import Library

if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # each of these processes has a core; read when torch is imported

settings.register_profile("tests", settings.default, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")  # how long an example takes says how much else the machine has to do


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--tier", choices=tiers.TIERS, help="run the tests of this tier only (see docs/testing.md)")


def pytest_configure(config: pytest.Config) -> None:
    """The default cache folder, of the tests and of what they start, is `cache_folder`, not the user's; nothing else
    outlives them."""
    os.environ["XDG_CACHE_HOME"] = str(cache_folder(config).parent)
    gc.disable()  # until all tests are collected
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's job in the background ignores it
    os.environ["PIE_STATE"] = "none"  # what `pie serve` keeps would be the user's, and one server's at a time
    config.addinivalue_line("markers", "whole: only `make test-all` has time for it. Set by tests/helpers/tiers.py")


def pytest_sessionstart(session: pytest.Session) -> None:
    """Of processes that run tests beside each other, each first imports a share of the files, whose bytecode it makes
    for all. In the order of collection each would make that of all files, which is half of the work."""
    if "PYTEST_XDIST_WORKER" not in os.environ or session.config.getoption("--tier") == "fast":
        return
    number, count = int(os.environ["PYTEST_XDIST_WORKER"][2:]), int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    files = sorted(file for each in session.config.args for file in Path(each).resolve().rglob("test_*.py"))
    for file in files[len(files) * number // count : len(files) * (number + 1) // count]:
        with contextlib.suppress(Exception, pytest.skip.Exception):  # collecting tells of it
            import_module(".".join(file.relative_to(ROOT).with_suffix("").parts))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Files without a fast test are not even imported in the fast tier."""
    is_test = collection_path.name.startswith("test_") and collection_path.suffix == ".py"
    return (config.getoption("--tier") == "fast" and is_test and not tiers.has_fast_tests(collection_path)) or None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    tiers.mark(items)
    tier = config.getoption("--tier")
    if tier is None:
        return
    left_out = [item for item in items if not tiers.is_in(tier, item)]
    items[:] = [item for item in items if tiers.is_in(tier, item)]
    config.hook.pytest_deselected(items=left_out)
    for item in items:
        if isinstance(item, pytest.Function):
            tiers.set_examples(item.function, tier)


def pytest_collection_finish() -> None:
    """What is loaded now stays: full collections of garbage, some of which tests ask for, need not go through it. What
    tests import is more, so those for which nobody asks are rare."""
    gc.freeze()
    gc.set_threshold(5_000)
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, None, None]:
    with guarded() if tiers.is_fast(item) else contextlib.nullcontext():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    with guarded() if tiers.is_fast(pyfuncitem) else contextlib.nullcontext():
        return (yield)


def cache_folder(config: pytest.Config) -> Path:
    assert config.cache is not None
    return Path(config.cache.mkdir("pie"))


@pytest.fixture(scope="session", autouse=True)
def fork_servers() -> Iterator[ForkServers | None]:
    """Starts the processes of servers that are in this process, where the system can."""
    if sys.platform != "linux":
        yield None
        return
    servers = ForkServers()
    with pytest.MonkeyPatch.context() as patch:
        for name in STARTERS:
            if name in sys.modules:  # else no test has it
                patch.setattr(sys.modules[name], "subprocess", servers)
        yield servers
    servers.end()


@pytest.fixture
def started_as_usual(fork_servers: ForkServers | None) -> Iterator[None]:
    """The product starts its processes itself: for tests of how they start and end."""
    with fork_servers.resting() if fork_servers else contextlib.nullcontext():
        yield


@pytest.fixture(scope="session")
def kernel_cache(pytestconfig: pytest.Config) -> Path:
    """A cache folder with the kernels compiled, where they can be; those of other instruction sets come when used."""
    folder = cache_folder(pytestconfig)
    with contextlib.suppress(KernelsUnavailable):
        build(folder)
    return folder


@pytest.fixture(scope="session", params=ISAS)
def library(request: pytest.FixtureRequest, kernel_cache: Path) -> Library:
    """The compiled kernels, for each instruction set."""
    import torch

    from pie_inference.cpu_kernels.library import find_library

    found = find_library("auto", kernel_cache, torch.device("cpu"), request.param)
    if found is None:
        pytest.skip("the kernels cannot be built here")
    return found


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[None]:
    """Torch, and kernels that follow it, compute with so many threads."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def guest_cache(kernel_cache: Path) -> Path:
    """A cache folder with the Python guest built and compiled. It has the kernels too: workers would compile them
    while a test waits for its server."""
    asyncio.run(compiled_guest(ProgramStore(kernel_cache).cache_dir))
    return kernel_cache


@pytest.fixture(scope="session")
def cargo_target(pytestconfig: pytest.Config) -> Path:
    """The folder in which cargo builds programs. The crate that all depend on is compiled there once."""
    return cache_folder(pytestconfig) / "cargo"


@pytest.fixture(scope="session")
def interpreter() -> Iterator[Interpreter]:
    """A process in which Triton kernels run on the CPU."""
    pytest.importorskip("triton")
    with running_interpreter() as running:
        yield running
