"""Turns a Python function into a program, for `Client.run`."""

from __future__ import annotations

import ast
import builtins
import contextlib
import dis
import functools
import importlib.util
import inspect
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pie_control.errors import BadRequest

HEADER = "from inferlet_sdk import *\n"


def program_of(function: Callable[..., Any]) -> str:
    """Program text whose entry is `function`; raises BadRequest if its source cannot be shipped.

    The function runs in the server's sandbox: it sees its own source and `inferlet_sdk`, but not the module around it.
    """
    name = getattr(function, "__name__", "")
    if not inspect.isfunction(inspect.unwrap(function)) or name == "<lambda>":
        raise BadRequest(
            "only a function written with `def` or `async def` can be shipped, not a lambda, method or class"
        )
    original = inspect.unwrap(function)
    if original.__code__.co_freevars:
        names = ", ".join(original.__code__.co_freevars)
        raise BadRequest(f"{name} uses variables of the function around it ({names}): pass them as arguments")
    text = _undecorated(*_source(original))
    told = [_advice(one, original.__globals__[one]) for one in _of_its_module(text, original)]
    if told:
        raise BadRequest(f"{name} runs without the module around it: {'; '.join(told)}")
    return HEADER + text + f"\n\ninferlet({name})\n"


def _of_its_module(text: str, function: types.FunctionType) -> Iterator[str]:
    """Names that the text of a function uses, and that only its module has."""
    tree = _WithoutAnnotations().visit(ast.parse(text))
    used: dict[str, None] = {}
    made: set[str] = set()
    for code in _codes(compile(tree, function.__name__, "exec", dont_inherit=True)):
        for step in dis.get_instructions(code):
            if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
                used[step.argval] = None
            elif step.opname in ("STORE_GLOBAL", "STORE_NAME"):
                made.add(step.argval)
    for name in used:
        value = function.__globals__.get(name, _NOTHING)
        of_sdk = name in _sdk_names() and getattr(value, "__module__", None) != function.__module__
        of_python = value is getattr(builtins, name, _NOTHING)
        if value is not _NOTHING and name not in made and not of_sdk and not of_python and not name.startswith("__"):
            yield name


_NOTHING = object()


class _WithoutAnnotations(ast.NodeTransformer):
    """The sandbox's Python does not evaluate them where they stand."""

    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.annotation = None
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        node.annotation = ast.copy_location(ast.Constant(None), node.annotation)
        return self.generic_visit(node)


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


@functools.cache
def _sdk_names() -> frozenset[str]:
    """What `from inferlet_sdk import *` gives, read without importing it."""
    spec = importlib.util.find_spec("inferlet_sdk")
    assert spec is not None, "the SDK is installed with the client"
    assert spec.origin is not None
    for node in ast.parse(Path(spec.origin).read_text("utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return frozenset(ast.literal_eval(node.value))
    raise AssertionError("the SDK says what it exports")


def _advice(name: str, value: object) -> str:
    if isinstance(value, types.ModuleType):
        return f"import {name} inside of it"
    if inspect.isfunction(value) or inspect.isclass(value):
        return f"define {name} inside of it"
    return f"pass {name} as an argument"


Definition = ast.FunctionDef | ast.AsyncFunctionDef


def _source(function: Callable[..., Any]) -> tuple[str, Definition]:
    """The text of a function, and what it is. Raises BadRequest."""
    with contextlib.suppress(OSError, TypeError, SyntaxError, ValueError):
        text = _dedented(inspect.getsource(function))
        definition = ast.parse(text).body[0]
        if isinstance(definition, Definition):  # that of what `exec` made may be the text of something else
            return text, definition
    name = getattr(function, "__name__", repr(function))
    raise BadRequest(f"the source of {name} cannot be found: put it in a file, or upload it as a program")


def _dedented(source: str) -> str:
    """The text of a definition from the margin on; its strings stay as they are."""
    if not source[:1].isspace():
        return source
    return ast.unparse(next(ast.iter_child_nodes(ast.parse(f"class _:\n{source}").body[0])))


def _undecorated(source: str, definition: Definition) -> str:
    """The definition without `@inferlet`, which the program's last line applies; other decorators are refused."""
    for decorator in definition.decorator_list:
        if not _is_inferlet(decorator):
            raise BadRequest(f"the decorator @{ast.unparse(decorator)} cannot be shipped: only @inferlet can")
    return "\n".join(source.split("\n")[definition.lineno - 1 :])  # `splitlines` splits at U+2028 and others, too


def _is_inferlet(decorator: ast.expr) -> bool:
    bare = decorator.func if isinstance(decorator, ast.Call) else decorator
    return ast.unparse(bare).rpartition(".")[2] == "inferlet"
