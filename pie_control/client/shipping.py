"""Turns a Python function into a program, for `Client.run`."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable
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
    return HEADER + _undecorated(_source(original)) + f"\n\ninferlet({name})\n"


def _source(function: Callable[..., Any]) -> str:
    try:
        return textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError):
        name = getattr(function, "__name__", repr(function))
        raise BadRequest(f"the source of {name} cannot be found: put it in a file, or upload it as a program") from None


def _undecorated(source: str) -> str:
    """The definition without `@inferlet`, which the program's last line applies; other decorators are refused."""
    definition = ast.parse(source).body[0]
    assert isinstance(definition, ast.FunctionDef | ast.AsyncFunctionDef), "the source of a function is a definition"
    for decorator in definition.decorator_list:
        if not _is_inferlet(decorator):
            raise BadRequest(f"the decorator @{ast.unparse(decorator)} cannot be shipped: only @inferlet can")
    return "\n".join(source.splitlines()[definition.lineno - 1 :])


def _is_inferlet(decorator: ast.expr) -> bool:
    return ast.unparse(decorator).rpartition(".")[2] == "inferlet"
