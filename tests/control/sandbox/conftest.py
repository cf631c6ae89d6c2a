"""Every test of the sandbox runs twice: with calls in Python, and with the compiled way of calls."""

from __future__ import annotations

import shutil

import pytest

from pie_control.sandbox.compiled.build import COMPILERS, build
from pie_control.sandbox.compiled.crossings import Crossings
from tests.conftest import cache_folder
from tests.helpers import ways


@pytest.fixture(scope="session")
def crossings(pytestconfig: pytest.Config) -> Crossings:
    """The compiled way; skips where there is no compiler."""
    if not any(map(shutil.which, COMPILERS)):
        pytest.skip("there is no C compiler here")
    return Crossings(build(cache_folder(pytestconfig) / "guest"))


@pytest.fixture(autouse=True, params=ways.NAMES)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of the way, which is `ways.current` during the test."""
    name: str = request.param
    monkeypatch.setattr(ways, "current", request.getfixturevalue("crossings") if name == "compiled" else None)
    return name
