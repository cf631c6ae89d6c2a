"""The check of each technique passes with few problems; `python -m benchmarks techniques` runs them with many.

`make test` has one of them: what the program of each writes is tested beside (test_examples.py).
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from examples import checks, page
from examples.checks import Measure
from inferlet_sdk import traits
from pie_control.calls import CALLS
from pie_control.client import Client
from tests.helpers.guard import HANG_SECONDS
from tests.helpers.live_server import live_server
from tests.helpers.tiers import corpus


@pytest.fixture(scope="module")
def run_check(guest_cache: Path) -> Iterator[Callable[[str], Sequence[Measure]]]:
    """Runs a check on a server with its models, which lasts for all checks with the same. Inferlets run in a process of
    their own: in one process, guests run on one thread only."""
    servers, urls = ExitStack(), dict[str, str]()

    async def check(name: str, url: str) -> Sequence[Measure]:
        async with asyncio.timeout(3 * HANG_SECONDS), Client(url) as client:
            return await checks.run(name, client, checks.load(name).LEAST)

    def run(name: str) -> Sequence[Measure]:
        settings = {**checks.settings(name), "hosts": 1}
        models = str(settings["model"])
        if models not in urls:
            urls[models] = servers.enter_context(live_server(guest_cache, **settings))
        return asyncio.run(check(name, urls[models]))

    with servers:
        yield run


@pytest.mark.parametrize("name", corpus(checks.names(), kind=lambda _: "a technique"))
def test_the_technique_does_what_it_is_for(name: str, run_check: Callable[[str], Sequence[Measure]]) -> None:
    measures = run_check(name)
    assert any(one.reach for one in measures)
    assert all(one.passed for one in measures), measures


@pytest.mark.parametrize("name", checks.names())
def test_the_program_is_no_longer_than_the_papers(name: str) -> None:
    most = checks.constants(name)["PAPER_LINES"]
    assert not most or checks.lines(checks.program(name)) <= most


def test_the_page_of_techniques_is_what_they_are() -> None:
    assert page.PAGE.read_text("utf-8") == page.page(), "run scripts/update_techniques"


def test_the_calls_of_a_program_are_found(tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    file.write_text("from inferlet_sdk import Context, Grammar, traits\nctx.generate(5, draft=f)\ntraits.forward(q)\n")
    assert page.calls(file) == ["decode", "forward", "verify"]
    assert {call for needed in page.NEEDED.values() for call in needed} - CALLS.keys() <= set(traits.__dict__)


def test_a_check_with_too_few_problems_says_so() -> None:
    with pytest.raises(ValueError, match=r"1 problems are too few to tell what swarm gains: take 3 or more"):
        asyncio.run(checks.run("swarm", Client("http://127.0.0.1:9"), 1))
    with pytest.raises(ValueError, match="no technique is called 'magic': there are "):
        checks.load("magic")


def test_lines_are_counted_without_comments_and_docstrings(tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    file.write_text('"""One\ntwo."""\n\n# three\nimport os  # four\n\ndef main(args):\n    """Five."""\n    pass\n')
    assert checks.lines(file) == 3


def test_a_measure_is_judged_by_its_bounds() -> None:
    assert Measure("share", 0.9).passed
    assert Measure("share", 0.9, at_least=0.9).passed
    assert not Measure("share", 0.89, at_least=0.9).passed
    assert not Measure("time", 1.1, at_most=1.0).passed
    assert not Measure("perplexity", math.nan, at_most=1.0).passed
    assert Measure("count", 1.0, 1.0, 1.0).reach == "1"
    assert Measure("share", 0.9, at_least=0.9).reach == "at least 0.9"
