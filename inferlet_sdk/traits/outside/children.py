"""Inferlets that an inferlet launches (children.wit)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from inferlet_sdk import bindings
from inferlet_sdk.dropped import drop
from inferlet_sdk.errors import call
from inferlet_sdk.event_loop import waited_for
from inferlet_sdk.futures import HostFuture, await_done
from inferlet_sdk.traits.arguments import number, texts, whole, wrong
from inferlet_sdk.traits.arguments import text as checked_text
from inferlet_sdk.traits.outside.blobs import take_message_if_any

__all__ = [
    "Child",
    "ChildEnd",
    "ChildFailed",
    "cancel_child",
    "drop_child",
    "join",
    "launch",
    "receive_child",
    "send_child",
]


@dataclass(frozen=True)
class ChildEnd:
    """How a child ended. `status`: "finished", "failed", "terminated", "exceeded", "evicted" or "lost"; `result`: what
    its `main` returned; `error`: why it ended otherwise; `inferlet`: its id."""

    inferlet: str
    status: str
    result: Any
    error: str | None


class ChildFailed(RuntimeError):
    """A child did not finish. `end` says how it ended."""

    def __init__(self, end: ChildEnd) -> None:
        super().__init__(f"the child {end.inferlet} {end.status}: {end.error or 'no reason is known'}")
        self.end = end


class Child:
    """An inferlet that this one has launched, on the same host and within its limits.

        child = launch("summarize", url)
        await child.send("go on")
        async for message in child:
            ...
        result = await child

    `await child` gives its result, and raises ChildFailed unless it finished. A child ends with its parent.
    """

    def __init__(self, handle: int) -> None:
        self.handle: int | None = handle
        self._host = bindings.core
        self._joined: HostFuture[ChildEnd] | None = None

    def __repr__(self) -> str:
        return f"Child({self.handle})"

    def join(self) -> HostFuture[ChildEnd]:
        """How it ended, whatever that is. Raises at the `await` what kept it from being launched: NotFound,
        InvalidArgument, Exhausted."""
        if self._joined is None:
            self._joined = join(self)
        return self._joined

    def result(self) -> Any:
        """What its `main` returned: `await child.result()`, the same as `await child`; without `await` in a plain `def
        main`. Raises ChildFailed, and as `join`."""
        return waited_for(self._result())

    async def _result(self) -> Any:
        end = await self.join()
        if end.status != "finished":
            raise ChildFailed(end)
        return end.result

    def __await__(self) -> Any:
        return self._result().__await__()

    def send(self, message: str) -> Awaitable[None]:
        """Sends a message that the child gets with `args.receive()`. `await` waits while it receives slowly."""
        return send_child(self, message)

    def receive(self) -> HostFuture[str | None]:
        """The next message that the child sends with `args.send`; None when it has ended and all are taken."""
        return receive_child(self)

    async def __aiter__(self) -> AsyncIterator[str]:
        while (message := await self.receive()) is not None:
            yield message

    def __iter__(self) -> Iterator[str]:
        while (message := self.receive().result()) is not None:
            yield message

    def cancel(self) -> None:
        """Ends it soon; nothing happens if it has ended."""
        cancel_child(self)

    def close(self) -> None:
        """Drops what was not taken of it. A child that runs goes on. Idempotent."""
        handle, self.handle = self.handle, None
        if handle is not None:
            call(bindings.core.drop, handle)

    def __del__(self) -> None:
        if getattr(self, "handle", None) is not None:
            drop(self, self._host)


def launch(
    program: str | None = None,
    *arguments: str,
    kwargs: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
    **limits: float,
) -> Child:
    """Launches a child: a program that was uploaded, by its name or hash, or this one again (None).

    `arguments` are its command line, `kwargs` the parameters of its `main`, as in `launch("story", kwargs={"topic":
    "bees"})`. `limits` bound what it may hold with its own children: memory_bytes, cpu_seconds, max_pages, max_embeds,
    max_queues, max_children; by default what this inferlet may. What children hold counts as this inferlet's as well.

    Returns at once. Raises QuotaExceeded if too many of the family run; what else keeps it from being launched is
    raised by `await child`.
    """
    if environment is not None and not isinstance(environment, Mapping):
        raise wrong("environment", "a mapping of names to texts", environment)
    env = dict(environment or {})
    if kwargs is not None:
        if not isinstance(kwargs, Mapping):
            raise wrong("kwargs", "a mapping of parameters to values", kwargs)
        env["kwargs"] = json.dumps(dict(kwargs))
    for name, value in env.items():
        checked_text(name, "environment")
        checked_text(value, f"environment[{name!r}]")
    bounds = {
        name: number(value, name) if name == "cpu_seconds" else whole(value, name) for name, value in limits.items()
    }
    options = json.dumps({"environment": env, "limits": bounds})
    source = "" if program is None else checked_text(program, "program")
    return Child(call(bindings.children.launch, source, texts(arguments, "arguments"), options))


# ---- calls under their own names ----


def _handle(child: Child | int) -> int:
    handle = child.handle if isinstance(child, Child) else child
    if handle is None:
        raise ValueError("child: it was closed")
    return whole(handle, "child", least=1, wanted="what `launch` returned")


def _end(future: int) -> ChildEnd:
    told = json.loads(bindings.core.await_text(future))
    result = told["result"]
    return ChildEnd(told["inferlet"], told["status"], None if result is None else json.loads(result), told["error"])


def join(child: Child | int) -> HostFuture[ChildEnd]:
    """How a child ended; `Child.join` is the same."""
    return HostFuture(call(bindings.children.join, _handle(child)), _end)


class _Gone(HostFuture[None]):
    """A message that is on its way."""

    def __init__(self) -> None:
        super().__init__(0, lambda _: None)
        self._taken = True


def send_child(child: Child | int, message: str) -> HostFuture[None]:
    """Sends a message to a child; `Child.send` is the same. In a plain `def main` it waits in place."""
    future = call(bindings.core.send, _handle(child), checked_text(message, "message"))
    if future is None:
        return _Gone()
    going: HostFuture[None] = HostFuture(future, await_done)
    if asyncio._get_running_loop() is None:
        going.result()
    return going


def receive_child(child: Child | int) -> HostFuture[str | None]:
    """The next message of a child; `Child.receive` is the same."""
    return HostFuture(call(bindings.core.receive, _handle(child)), take_message_if_any)


def cancel_child(child: Child | int) -> None:
    """Ends a child soon; `Child.cancel` is the same."""
    call(bindings.children.cancel_child, _handle(child))


def drop_child(child: Child | int) -> None:
    """Drops a child's handle; `Child.close` is the same."""
    if isinstance(child, Child):
        child.close()
    else:
        call(bindings.core.drop, _handle(child))
