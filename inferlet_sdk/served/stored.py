"""What the server stores for a program that serves a request: its answer with all events, and what was said before.

Two messages of a program are for the server, and must come before all others. `docs/serving-programs.md` has them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from inferlet_sdk.served.errors import Refused
from inferlet_sdk.traits import receive, send
from inferlet_sdk.traits.outside.blobs import Blob

PART = 1 << 17
"""Characters of a message; those of a longer one come in parts, the last of which is empty."""
PREVIOUS = "previous_response_id"


@dataclass(frozen=True)
class Earlier:
    """What was said before a request, oldest first."""

    turns: Sequence[Mapping[str, Any]] = ()
    """Each has its `input`, as the program has stored it, and its answer as `body`."""
    blobs: Mapping[str, Blob] = field(default_factory=dict)
    """The images in it, by the names that those of a request have."""

    @property
    def items(self) -> list[dict[str, Any]]:
        """All items of responses, in order: those that were given, and those of the answers."""
        return [one for turn in self.turns for one in (*turn["input"], *turn["body"].get("output", ()))]


async def fetch_earlier(id: str, param: str = PREVIOUS) -> Earlier:
    """The stored answer with this identifier, and those before it. Raises Refused; `param`: the field that has it."""
    await send(json.dumps({"served_fetch": {"id": id}}))
    message = await receive()
    if "stored" not in message.blobs:
        raise Refused(f"{param}: {message}", param, code="previous_response_not_found")
    blobs = dict(message.blobs)
    with blobs.pop("stored") as found:
        return Earlier(json.loads(found.read()), blobs)


async def store_answer(
    body: Mapping[str, Any], input: Sequence[Any] = (), previous: str = "", background: bool = False
) -> None:
    """Lets the server store the answer by `body["id"]`, with the events that come from now on. It ends with the result
    of the program, also where the client gets a stream, or has left.

    `body`: the answer as far as it is known, an object with a `status`; `input`: what was asked. `previous`: the
    identifier of the answer that it goes on from. `background`: the client gets `body` at once, and asks later.
    """
    told = {"id": body["id"], "body": body, "input": input, "previous": previous, "background": background}
    text = json.dumps({"served_store": told})
    for place in range(0, len(text), PART) if len(text) > PART else ():
        await send(json.dumps({"served_part": {"text": text[place : place + PART]}}))
    await send(text if len(text) <= PART else json.dumps({"served_part": {"text": ""}}))
