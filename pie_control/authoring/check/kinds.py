"""What a value in a program is, as far as the SDK's own code tells."""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
import types
import typing
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Literal

import inferlet_sdk

SDK = inferlet_sdk.__name__
PLAIN = (str, int, float, bool, bytes, list, dict, tuple, set, type(None))


@dataclass(frozen=True)
class Value:
    """`object`: `of` itself, such as a module or class; `instance`: one of class `of`; `method`: function `of` of an
    instance; `coroutine`: it gives `gives`, and `name` made it; `plain`: of class `of`, which cannot be awaited."""

    kind: Literal["object", "instance", "method", "coroutine", "plain"]
    of: Any = None
    owner: Any = None
    gives: Value | None = None
    name: str = ""


def is_of_sdk(thing: Any) -> bool:
    """Whether a module, class or function is the SDK's."""
    name = thing.__name__ if isinstance(thing, types.ModuleType) else getattr(thing, "__module__", "")
    return name == SDK or str(name).startswith(SDK + ".")


def attribute(value: Value, name: str) -> tuple[Value | None, Iterable[str] | None]:
    """The attribute of a value, if it can be told; and what there is, if there is no such attribute."""
    if value.kind == "object" and isinstance(value.of, types.ModuleType):
        if hasattr(value.of, name):
            return Value("object", getattr(value.of, name)), None
        return None, dir(value.of) if is_of_sdk(value.of) else None
    if value.kind != "instance":
        return None, None
    found = inspect.getattr_static(value.of, name, None)
    if isinstance(found, property | functools.cached_property):
        getter = found.fget if isinstance(found, property) else found.func
        return returned(getter, value.of), None
    if inspect.isfunction(found):
        return Value("method", found, value.of), None
    names = attributes(value.of)
    return None, None if name in names or hasattr(value.of, "__getattr__") else names


@functools.cache
def attributes(cls: type) -> frozenset[str]:
    """Names that instances of a class of the SDK have."""
    names = set(dir(cls))
    for base in cls.__mro__[:-1]:
        names |= set(getattr(base, "__annotations__", ())) | set(getattr(base, "__slots__", ()))
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(base)))
        except (OSError, TypeError):
            continue
        stores = (
            node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
        )
        names |= {node.attr for node in stores if isinstance(node.value, ast.Name) and node.value.id == "self"}
    return frozenset(names)


def called(value: Value) -> Value | None:
    """What a call gives."""
    if value.kind == "method":
        return returned(value.of, value.owner)
    if value.kind != "object":
        return None
    if inspect.isclass(value.of):
        return Value("instance", value.of) if is_of_sdk(value.of) else None
    return returned(value.of, None) if callable(value.of) else None


def returned(function: Any, owner: type | None) -> Value | None:
    """What a function gives, by its annotations."""
    given = _by_hint(_return_hint(function), owner) if is_of_sdk(function) else None
    if inspect.iscoroutinefunction(function):
        return Value("coroutine", gives=given, name=function.__qualname__)
    return given


@functools.cache
def _return_hint(function: Any) -> Any:
    try:
        return typing.get_type_hints(function).get("return", Any)
    except Exception:  # a name that exists for type checkers only
        return Any


def _by_hint(hint: Any, owner: type | None) -> Value | None:
    if hint is typing.Self and owner is not None:
        return Value("instance", owner)
    cls = typing.get_origin(hint) or hint
    if cls in PLAIN:
        return Value("plain", cls)
    if inspect.isclass(cls) and is_of_sdk(cls) and not getattr(cls, "_is_protocol", False):
        return Value("instance", cls)
    return None


def is_awaitable(value: Value) -> bool:
    """Whether it may be awaited, as far as is known."""
    if value.kind == "instance":
        return hasattr(value.of, "__await__")
    return value.kind not in ("plain", "method")


def signature_error(value: Value, call: ast.Call) -> str | None:
    """What is wrong with the arguments of a call of the SDK, if anything is."""
    function = value.of
    if value.kind not in ("object", "method") or not is_of_sdk(function) or not callable(function):
        return None
    try:
        signature = inspect.signature(function)
    except (ValueError, TypeError):
        return None
    open_ended = any(isinstance(one, ast.Starred) for one in call.args) or any(one.arg is None for one in call.keywords)
    positional: list[Any] = [None for one in call.args if not isinstance(one, ast.Starred)]
    if value.kind == "method" and not isinstance(inspect.getattr_static(value.owner, function.__name__), staticmethod):
        positional.insert(0, None)
    named: dict[str, Any] = {one.arg: None for one in call.keywords if one.arg is not None}
    options = _options(function)
    if options is not None and (unknown := [name for name in named if name not in options]):
        close = get_close_matches(unknown[0], options, 1)
        advice = f"did you mean `{close[0]}`?" if close else f"there are {', '.join(options)}"
        if unknown[0] in inferlet_sdk.Sampler.__dataclass_fields__:
            advice = f"write `sampler=Sampler({unknown[0]}=...)`"
        return f"got an unexpected keyword argument {unknown[0]!r}; {advice}"
    try:
        (signature.bind_partial if open_ended else signature.bind)(*positional, **named)
    except TypeError as error:
        return f"{error}; it is {function.__name__}{_shown(signature)}"
    return None


@functools.cache
def _options(function: Any) -> tuple[str, ...] | None:
    """Names of all that may be given by name, where the last parameter is `**options: Unpack[Options]`."""
    try:
        parameters = inspect.signature(function).parameters.values()
        hints = typing.get_type_hints(function)
    except Exception:  # a name that exists for type checkers only
        return None
    rest = next((one for one in parameters if one.kind is one.VAR_KEYWORD), None)
    hint = hints.get(rest.name) if rest is not None else None
    if typing.get_origin(hint) is not typing.Unpack:
        return None
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    named = [one.name for one in parameters if one.kind in kinds and one.name != "self"]
    return (*named, *typing.get_type_hints(typing.get_args(hint)[0]))


def _shown(signature: inspect.Signature) -> str:
    parameters = [one for one in signature.parameters.values() if one.name != "self"]
    return str(signature.replace(parameters=parameters, return_annotation=inspect.Signature.empty)).replace("'", "")
