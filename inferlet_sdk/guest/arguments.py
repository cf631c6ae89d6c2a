"""The arguments of an inferlet: the `args` handle, and the other parameters of `main`.

`async def main(args, topic: str, points: int = 3)` takes `points=5`, `--points 5`, `--points=5` or plain words in
order from the command line, and keyword arguments from the Python client (the environment entry "kwargs", JSON).
"""

from __future__ import annotations

import asyncio
import inspect
import json
import types
import typing
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

from inferlet_sdk import traits
from inferlet_sdk.event_loop import run_blocking
from inferlet_sdk.futures import HostFuture
from inferlet_sdk.generation.generation import Generation
from inferlet_sdk.traits.core import LogLevel
from inferlet_sdk.traits.outside.blobs import Message


class UsageError(Exception):
    """The arguments do not fit the program."""


class Args:
    """The launch of an inferlet and the connection to its client."""

    @cached_property
    def argv(self) -> list[str]:
        """The arguments given at launch."""
        return traits.get_arg()

    @cached_property
    def environment(self) -> dict[str, str]:
        """Launch metadata: `inferlet`, `program` and `user`, set by the server, and what the client added."""
        return traits.get_env()

    @cached_property
    def model(self) -> str:
        """Name of the default model."""
        return traits.available_models()[0]

    def send(self, text: str) -> Awaitable[None]:
        """Sends a message to the client. `await` waits while the client is slow; without it, the next `send` does."""
        return traits.send(text)

    def stream(self, generation: Generation) -> Any:
        """Sends the text of a generation to the client as it comes: `text = await args.stream(ctx.generate())`. The
        program sleeps meanwhile, unless a regular expression, a function or its own sampler has to look at each token.
        In a plain `def main` it waits in place, without `await`."""
        if not isinstance(generation, Generation):
            raise TypeError(f"generation: give what `generate` returned, not {type(generation).__name__}")
        text = generation.whole(send=True)
        return run_blocking(text) if asyncio._get_running_loop() is None else text

    def receive(self) -> HostFuture[Message]:
        """The next message from the client: `await args.receive()`. It is a text; `.blobs` has what came with it."""
        return traits.receive()

    def log(self, message: object, level: LogLevel = "info") -> None:
        """Adds a line to the inferlet's log."""
        traits.log(message, level)


def bind(function: Callable[..., Any], args: Args, program: str) -> Callable[[], Any]:
    """Binds the launch's arguments to the parameters of `function`; raises UsageError if they do not fit."""
    if _takes_args_only(function) and "kwargs" not in args.environment:
        return lambda: function(args)
    parameters = list(inspect.signature(function).parameters.values())
    if not parameters:
        return function
    kwargs = _client_kwargs(args.environment) if "kwargs" in args.environment else {}
    named = [p for p in parameters[1:] if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    if named:
        kwargs |= _parse(args.argv, _annotated(function, named), kwargs, _usage(program, named))
    _check_names(kwargs, parameters, _usage(program, named))
    return lambda: function(args, **kwargs)


def _takes_args_only(function: Callable[..., Any]) -> bool:
    """Reads the code object, because `inspect.signature` would take half a millisecond of each launch."""
    code = getattr(function, "__code__", None)
    if code is None or hasattr(function, "__wrapped__"):
        return False
    extras = code.co_kwonlyargcount or code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS)
    return bool(code.co_argcount == 1 and not extras)


def _client_kwargs(environment: Mapping[str, str]) -> dict[str, Any]:
    try:
        kwargs = json.loads(environment["kwargs"])
    except json.JSONDecodeError as error:
        raise UsageError(f"the environment entry 'kwargs' is not JSON: {error}") from None
    if not isinstance(kwargs, dict):
        raise UsageError("the environment entry 'kwargs' must be a JSON object of parameter names and values")
    return kwargs


def _check_names(kwargs: Mapping[str, Any], parameters: Sequence[inspect.Parameter], usage: str) -> None:
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return
    names = {p.name for p in parameters[1:]}
    for name in kwargs:
        if name not in names:
            raise UsageError(f"main has no parameter {name!r}\n{usage}")
    missing = [p.name for p in parameters[1:] if p.default is p.empty and p.kind <= p.KEYWORD_ONLY]
    missing = [name for name in missing if name not in kwargs and name in names and _is_required(parameters, name)]
    if missing:
        raise UsageError(f"missing: {', '.join(missing)}\n{usage}")


def _is_required(parameters: Sequence[inspect.Parameter], name: str) -> bool:
    kind = next(p.kind for p in parameters if p.name == name)
    return kind in (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def _annotated(function: Callable[..., Any], parameters: Sequence[inspect.Parameter]) -> dict[str, Any]:
    """The type to which each parameter's text is converted, by name."""
    try:
        hints = typing.get_type_hints(function)
    except Exception:  # an annotation with an unknown name: its argument stays text
        hints = {}
    return {p.name: hints.get(p.name, _type_of_default(p.default)) for p in parameters}


def _type_of_default(default: Any) -> Any:
    return type(default) if isinstance(default, bool | int | float | str) else str


def _parse(argv: Sequence[str], types_: Mapping[str, Any], given: Mapping[str, Any], usage: str) -> dict[str, Any]:
    """Values from the command line, by name."""
    values: dict[str, Any] = {}
    items = list(argv)
    while items:
        name, text = _split(items, types_, [*given, *values], usage)
        if name in values:
            raise UsageError(f"{name} is given twice\n{usage}")
        values[name] = _convert(name, text, types_[name], usage)
    return values


def _split(items: list[str], types_: Mapping[str, Any], taken: Sequence[str], usage: str) -> tuple[str, str]:
    """Takes one argument off `items`: its parameter and its text."""
    item = items.pop(0)
    name, equals, text = item.removeprefix("--").partition("=")
    name = name.replace("-", "_")
    if name in types_ and equals:
        return name, text
    if item.startswith("--"):
        if name not in types_:
            raise UsageError(f"unknown option {item}\n{usage}")
        return name, _option_value(name, items, types_, usage)
    free = next((n for n in types_ if n not in taken), None)
    if free is None:
        raise UsageError(f"unexpected argument {item!r}\n{usage}")
    return free, item


def _option_value(name: str, items: list[str], types_: Mapping[str, Any], usage: str) -> str:
    if types_[name] is bool and (not items or items[0].lower() not in _BOOLEANS):
        return "true"
    if not items:
        raise UsageError(f"--{name} needs a value\n{usage}")
    return items.pop(0)


QUOTES = "'"
_BOOLEANS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def _convert(name: str, text: str, wanted: Any, usage: str) -> Any:
    wanted = _without_none(wanted)
    try:
        if wanted is bool:
            return _BOOLEANS[text.lower()]
        if wanted in (int, float):
            return wanted(text)
        return json.loads(text) if typing.get_origin(wanted) in (list, dict) or wanted in (list, dict) else text
    except (ValueError, KeyError):
        kind = getattr(wanted, "__name__", str(wanted))
        raise UsageError(f"{name}: {text!r} is not of type {kind}\n{usage}") from None


def _without_none(wanted: Any) -> Any:
    """Turns `X | None` into `X`."""
    if typing.get_origin(wanted) in (typing.Union, types.UnionType):
        return next(option for option in typing.get_args(wanted) if option is not type(None))
    return wanted


def _usage(program: str, parameters: Sequence[inspect.Parameter]) -> str:
    return " ".join(["usage:", program, *map(_usage_of, parameters)])


def _usage_of(parameter: inspect.Parameter) -> str:
    kind = inspect.formatannotation(parameter.annotation)
    if parameter.annotation is parameter.empty:
        kind = _type_of_default(parameter.default).__name__
    shown = f"{parameter.name}={kind.strip(QUOTES).removesuffix(' | None')}"
    return shown if parameter.default is parameter.empty else f"[{shown}]"
