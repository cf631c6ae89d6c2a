"""The worker's options: one declaration, from which command lines and checks are derived."""

from __future__ import annotations

import argparse
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pie_inference.options import (
    OptionError,
    WorkerOptions,
    add_arguments,
    given_options,
    option_fields,
    read_options,
    to_arguments,
)
from pie_inference.quantization.names import FORMATS
from tests.helpers.tree import ROOT


def options_of(words: list[str]) -> WorkerOptions:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    add_arguments(parser)
    return WorkerOptions(**given_options(parser.parse_args(words)))


def values_of(name: str) -> st.SearchStrategy[object]:
    option = next(each for each in option_fields() if each.name == name)
    if option.metadata["choices"]:
        return st.sampled_from(option.metadata["choices"])
    numbers = st.integers(option.metadata["least"], option.metadata["most"])
    return numbers | st.none() if option.default is None else numbers


ANY_OPTIONS = st.fixed_dictionaries({}, optional={each.name: values_of(each.name) for each in option_fields()})


@given(ANY_OPTIONS)
def test_a_command_line_gives_the_options_that_it_was_made_of(values: dict[str, Any]) -> None:
    options = WorkerOptions(**values)
    assert options_of(to_arguments(options)) == options


def test_without_options_nothing_need_be_said() -> None:
    assert to_arguments(WorkerOptions()) == []
    assert options_of([]) == WorkerOptions()


def test_numbers_can_be_left_to_the_worker() -> None:
    assert options_of(["--pages", "auto", "--threads=3"]) == WorkerOptions(threads=3)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"pages": "many"}, "--pages must be a whole number or auto, not 'many'"),
        ({"page_size": "auto"}, "--page-size must be a whole number, not 'auto'"),
    ],
)
def test_what_cannot_be_read_is_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        read_options(values)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"pages": 0}, "--pages must be at least 1, not 0"),
        ({"host_pages": -1}, "--host-pages must be at least 0, not -1"),
        ({"page_size": 33}, "--page-size must be 8 to 32, not 33"),
        ({"page_size": None}, "--page-size must be 8 to 32, not None"),
        ({"device": "tpu"}, "--device must be one of auto, cpu, cuda, not 'tpu'"),
    ],
)
def test_what_is_not_allowed_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        WorkerOptions(**values)


def test_quantization_names_the_formats_that_there_are() -> None:
    [option] = [each for each in option_fields() if each.name == "quantization"]
    assert option.metadata["choices"] == ("none", *FORMATS)


def test_every_option_has_a_help_text_and_no_torch() -> None:
    assert all(option.metadata["help"] for option in option_fields())
    code = "import sys, pie_inference.options; assert not {'torch', 'zmq'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
