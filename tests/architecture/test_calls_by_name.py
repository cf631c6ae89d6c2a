"""What is special about a call is in its room: the scheduler and the host's functions name none.

A name is an import of a room, an identifier or a whole text, with dashes or underscores, also as the name of a class
(`SampleCommand`). A method of something else may have the name of a call, as `decode` of bytes has, and sentences may
tell of calls.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from pie_control.calls import CALLS
from tests.helpers.tree import ROOT

FOLDERS = ("scheduling", "host_api")
CALLS_PACKAGE = "calls"


def spelled(node: ast.AST) -> Iterator[str]:
    """The names that a node gives or uses."""
    match node:
        case ast.Import(names=names):
            for one in names:
                yield one.name.rpartition(".")[2]
        case ast.ImportFrom(module=module, names=names):
            yield (module or "").rpartition(".")[2]
            for one in names:
                yield one.name
        case ast.Name(id=name) | ast.arg(arg=name) | ast.keyword(arg=str(name)):
            yield name
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.Constant(value=str(text)):
            yield text


def bound_to_calls(tree: ast.AST) -> set[str]:
    """What a module calls the packages of rooms that it imports."""
    return {
        one.asname or one.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and CALLS_PACKAGE in (node.module or "").split(".")
        for one in node.names
    }


def as_call(name: str) -> str:
    """The name that a call of it would have."""
    if name[:1].isupper():
        name = re.sub(r"(?<!^)(?=[A-Z])", "_", re.sub(r"(Command|Batch|Result)$", "", name)).lower()
    return name.replace("-", "_")


def calls_named(source: str) -> set[str]:
    tree = ast.parse(source)
    packages = bound_to_calls(tree)
    found = {as_call(name) for node in ast.walk(tree) for name in spelled(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in packages:
            found.add(node.attr)
    return found & CALLS.keys()


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_call_is_named(folder: str) -> None:
    files = sorted((ROOT / "pie_control" / folder).rglob("*.py"))
    assert len(files) > 10
    named = {str(path.relative_to(ROOT)): found for path in files if (found := _named_in(path))}
    assert not named, "make what is special about a call a field of its `Call`"


def _named_in(path: Path) -> set[str]:
    return calls_named(path.read_text())


@pytest.mark.parametrize(
    ("source", "named"),
    [
        ("from ..calls.fused.decode import cancel", {"decode"}),
        ("from ..calls.output_text import get_logprobs", {"get_logprobs"}),
        ("from ..calls import fused\nfused.sample.issue()", {"sample"}),
        ("import pie_control.calls.fused.verify", {"verify"}),
        ("most = {('output_text', 'get-logprobs'): 1}", {"get_logprobs"}),
        ("def sample(): ...", {"sample"}),
        ("class VerifyCommand: ...", {"verify"}),
        ("isinstance(one, Synchronize)", {"synchronize"}),
        ("read(forward=1)", {"forward"}),
        ("b''.decode()", set[str]()),
        ("from ..calls.forward.batch import PassCommand", set[str]()),
        ("error('a sample needs an output: run forward first')", set[str]()),
    ],
)
def test_names_are_found(source: str, named: set[str]) -> None:
    assert calls_named(source) == named
