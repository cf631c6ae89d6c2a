"""A test is in a tier by what it uses, and one that hides what it uses fails in the fast tier."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis.strategies import integers

from tests.helpers.tiers import (
    FEW,
    MORE,
    corpus,
    heavy_uses,
    is_in,
    mark,
    names_of_tests,
    pairs,
    runs_a_benchmark,
    set_examples,
)
from tests.helpers.tree import ROOT

TESTS = ROOT / "tests"
FILE = """
import os
import subprocess as processes

from hypothesis import given, settings, strategies

TRIED = []


def start():
    processes.run(["true"])


def test_pure():
    pass


class TestOfAClass:
    def test_pure_too(self):
        pass


class TestThatSaysSo:
    def test_it(self):
        start()


def test_that_says_so():
    start()


def test_that_loads_what_is_large():
    import transformers


def test_that_hides_it():
    getattr(os, "sys" + "tem")("true")


def test_that_hides_that_it_failed():
    try:
        getattr(os, "sys" + "tem")("true")
    except AssertionError:
        pass


def test_a_server_that_is_hidden():
    with __import__("socket").socket() as listening:
        listening.bind(("127.0.0.1", 0))


@given(strategies.integers(0, 1 << 40))
def test_property(number):
    TRIED.append(number)


@settings(max_examples=40)
@given(strategies.integers(0, 1 << 40))
def test_property_with_settings(number):
    TRIED.append(number)


def test_examples():
    print("examples:", len(TRIED))
"""


def run(folder: Path, *options: str) -> tuple[set[str], set[str], int]:
    """Names of tests that pass and that fail in a file of its own, and how many examples it tries."""
    (folder / "test_it.py").write_text(FILE)
    (folder / "pytest.ini").touch()
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-rA", "--rootdir", str(folder), *options]
    ended = subprocess.run([*command, str(folder / "test_it.py")], cwd=ROOT, capture_output=True, text=True)
    passed, failed = (
        set(re.findall(rf"^{outcome} \S*::(\w+)", ended.stdout, re.M)) for outcome in ("PASSED", "FAILED")
    )
    examples = re.search(r"examples: (\d+)", ended.stdout)
    assert examples, ended.stdout + ended.stderr
    return passed, failed, int(examples[1])


def test_the_fast_tier_has_what_starts_nothing_and_what_hides_that_it_does_fails(tmp_path: Path) -> None:
    passed, failed, examples = run(tmp_path, "--tier", "fast")
    assert passed == {
        "test_pure",
        "test_pure_too",
        "test_property",
        "test_property_with_settings",
        "test_examples",
    }
    assert failed == {"test_that_hides_it", "test_that_hides_that_it_failed", "test_a_server_that_is_hidden"}
    assert examples == 2 * FEW


def test_in_other_tiers_tests_may_start_what_they_say(tmp_path: Path) -> None:
    passed, failed, examples = run(tmp_path, "--tier", "test")
    assert {"test_that_says_so", "test_it", "test_pure"} < passed
    assert failed == {"test_that_hides_it", "test_that_hides_that_it_failed", "test_a_server_that_is_hidden"}
    assert examples == 25 + FEW


@pytest.mark.parametrize(("tier", "examples"), [("fast", FEW), ("test", 20), ("all", MORE * 80)])
def test_a_tier_says_how_many_examples_are_tried(tier: str, examples: int) -> None:
    tried = []

    @settings(max_examples=80, database=None)
    @given(integers(0, 1 << 40))
    def test(number: int) -> None:
        tried.append(number)

    set_examples(test, tier)
    test()
    assert len(tried) == examples


@pytest.mark.parametrize(
    ("file", "test", "uses"),
    [
        ("sdk/test_guest.py", None, "pie_control.runtime"),
        ("system/test_survival.py", "test_a_killed_server_leaves_no_process", "subprocess"),
        ("inference/attention/test_triton.py", None, "triton"),
        ("inference/models/test_families.py", None, "transformers"),
        ("control/sandbox/test_fibers.py", None, "pie_control.sandbox"),
        ("architecture/test_architecture.py", "test_the_control_process_loads_no_wasmtime", "subprocess"),
        ("architecture/test_architecture.py", "test_no_import_cycles", ""),
        ("control/scheduling/test_properties.py", None, ""),
        ("control/calls/test_sample.py", None, ""),
        ("sdk/test_context.py", None, ""),
    ],
)
def test_what_tests_use_is_found(file: str, test: str | None, uses: str) -> None:
    """Through helpers, classes and fixtures, for tests that need much and for some that must stay fast."""
    path = TESTS / file
    for name in [test] if test else names_of_tests(path):
        found = heavy_uses(path, name)
        assert any(one.startswith(uses) for one in found) if uses else not found, (name, found)


def test_kernels_that_tiles_stand_for_are_for_make_test_all(request: pytest.FixtureRequest) -> None:
    item = request.node
    item.callspec = SimpleNamespace(params={"library": "avx512"})
    mark([item])
    assert not is_in("test", item)


def test_benchmarks_that_run_are_found() -> None:
    path = TESTS / "benchmarks" / "test_control.py"
    assert runs_a_benchmark(path, "test_tpot_compares_runs_with_the_same_tokens")
    assert not runs_a_benchmark(path, "test_every_function_of_the_api_has_a_row_or_a_reason")


def test_the_first_of_each_kind_of_a_corpus_is_in_make_test() -> None:
    parameters = corpus(["ab", "ac", "b", "ad"], kind=lambda value: value[0])
    assert [(one.values, bool(one.marks)) for one in parameters] == [
        (("ab",), False),
        (("ac",), True),
        (("b",), False),
        (("ad",), True),
    ]


def test_every_two_values_meet_in_make_test() -> None:
    parameters = pairs("abc", "xy", (1, 2))
    taken = [one.values for one in parameters if not one.marks]
    assert (len(parameters), len(taken)) == (12, 6)
    for first, second in ((0, 1), (0, 2), (1, 2)):
        assert {(one[first], one[second]) for one in taken} == {
            (one.values[first], one.values[second]) for one in parameters
        }
