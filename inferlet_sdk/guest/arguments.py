"""The arguments of an inferlet: the `args` handle, and the other parameters of `main`.

`async def main(args, topic: str, points: int = 3)` takes them from the command line (`command_line.py`), and values
from a client. These are JSON in the environment: entry "kwargs" by name; "args", those that are no texts, by place.
"""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Awaitable, Callable, Mapping
from functools import cached_property
from typing import Any

from inferlet_sdk import traits
from inferlet_sdk.event_loop import run_blocking
from inferlet_sdk.futures import HostFuture
from inferlet_sdk.generation.generation import Generation
from inferlet_sdk.guest.command_line import Binding, Parameter, UsageError, help_text, parameters_of, usage
from inferlet_sdk.traits.arguments import two_texts
from inferlet_sdk.traits.core import LogLevel
from inferlet_sdk.traits.outside.blobs import Message


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

    def stream(self, generation: Generation, frame: tuple[str, str] | None = None) -> Any:
        """Sends the text of a generation to the client as it comes: `text = await args.stream(ctx.generate())`. The
        program sleeps meanwhile, unless a regular expression, a function or its own sampler has to look at each token.
        `frame`: each piece goes between these two texts, escaped as the inside of a JSON string, so that
        `frame=('{"text":"', '"}')` makes JSON of it. In a plain `def main` it waits in place, without `await`."""
        if not isinstance(generation, Generation):
            raise TypeError(f"generation: give what `generate` returned, not {type(generation).__name__}")
        text = generation.whole(send=True, frame=() if frame is None else two_texts(frame, "frame"))
        return run_blocking(text) if asyncio._get_running_loop() is None else text

    def receive(self) -> HostFuture[Message]:
        """The next message from the client: `await args.receive()`. It is a text; `.blobs` has what came with it."""
        return traits.receive()

    def log(self, message: object, level: LogLevel = "info") -> None:
        """Adds a line to the inferlet's log."""
        traits.log(message, level)


def bind(function: Callable[..., Any], args: Args, program: str) -> Callable[[], Any]:
    """Binds the launch's arguments to the parameters of `function`; raises UsageError if they do not fit."""
    environment = args.environment
    if _takes_args_only(function) and "kwargs" not in environment:
        return lambda: function(args)
    parameters = parameters_of(function)
    if not (parameters or inspect.signature(function).parameters):
        return function
    argv = args.argv if parameters else []
    if _asks_for_help(argv, parameters):
        return lambda: _show(help_text(function, program, parameters))
    binding = Binding(parameters)
    values = _json_object(environment, "args")
    try:
        binding.take(argv, {int(place): one for place, one in values.items()}, _json_object(environment, "kwargs"))
        return binding.call(function, args)
    except UsageError as error:
        raise UsageError(f"{error}\n{usage(program, parameters)}") from None


def _show(text: str) -> None:
    traits.send(text)


def _asks_for_help(argv: list[str], parameters: list[Parameter]) -> bool:
    words = argv[: argv.index("--")] if "--" in argv else argv
    return ("--help" in words or words == ["-h"]) and all(one.name != "help" for one in parameters)


def _takes_args_only(function: Callable[..., Any]) -> bool:
    """Reads the code object, because `inspect.signature` would take half a millisecond of each launch."""
    code = getattr(function, "__code__", None)
    if code is None or hasattr(function, "__wrapped__"):
        return False
    extras = code.co_kwonlyargcount or code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS)
    return bool(code.co_argcount == 1 and not extras)


def _json_object(environment: Mapping[str, str], entry: str) -> dict[str, Any]:
    """`kwargs`: values of parameters by name. `args`: those that stand for words, by their places."""
    try:
        found = json.loads(environment.get(entry, "{}"))
    except json.JSONDecodeError as error:
        raise UsageError(f"the environment entry {entry!r} is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise UsageError(f"the environment entry {entry!r} must be a JSON object")
    return found
