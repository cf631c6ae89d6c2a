"""Replies whose stream consists of events of several kinds, as those of Anthropic's messages and OpenAI's responses."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from itertools import chain
from typing import Any, Protocol

from inferlet_sdk.served.writing.answer import Answer, Part


class EventReply(Protocol):
    """What an API makes of one answer: a whole body, or the JSON of events."""

    def whole(self, part: Part) -> dict[str, Any]: ...
    def start(self) -> Iterator[str]: ...
    def frame(self) -> tuple[str, str]: ...
    def events(self, part: Part) -> Iterator[str]: ...
    def finish(self) -> Iterator[str]: ...


async def send_reply(
    send: Callable[[str], Awaitable[None]], reply: EventReply, answer: Answer
) -> dict[str, Any] | None:
    """The body of the answer; or None, if the request asks for a stream: then it has sent the events. The first ones go
    with the first part of the answer, since the status of the HTTP response is told with them."""
    if not answer.wanted.stream:
        return reply.whole(await answer.whole())
    start = reply.start()  # has nothing more after its first use
    async for part in answer.parts(frame=reply.frame()):
        for event in chain(start, reply.events(part)):
            await send(event)
    for event in chain(start, reply.finish()):
        await send(event)
    return None
