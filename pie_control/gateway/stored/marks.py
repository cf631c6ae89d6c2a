"""What a program says to the server, before all that is for its client. Pure."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta, Raw

MARK = '{"served_'
"""How such a message begins."""
Id = Annotated[str, Meta(min_length=1, max_length=256)]


class Fetch(msgspec.Struct):
    """It wants the stored answer of this identifier, which a client gives, and those before it."""

    id: str


class Store(msgspec.Struct):
    """Its answer shall be stored. `body`, an object: what is known of it; `input`, a list: what was asked; `previous`:
    the answer that it goes on from; `background`: its client gets `body` at once."""

    id: Id
    body: Raw
    input: Raw = Raw(b"[]")
    previous: str = ""
    background: bool = False


class Part(msgspec.Struct):
    """Part of the text of a message that is too long for one."""

    text: str


class _Said(msgspec.Struct):
    served_part: Part | None = None
    served_fetch: Fetch | None = None
    served_store: Store | None = None


_decoder = msgspec.json.Decoder(_Said)


def read_mark(text: str) -> Fetch | Store | Part | None:
    """What a message says to the server; None: it is for the client, such as the words of a model."""
    if not text.startswith(MARK):
        return None
    try:
        said = _decoder.decode(text)
        store = said.served_store
        if store and not (bytes(store.body).startswith(b"{") and bytes(store.input).startswith(b"[")):
            return None
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return None
    return said.served_part or said.served_fetch or said.served_store


def with_end(body: str, status: str, error: dict[str, str] | None = None) -> str:
    """An answer that has come to an end without a result: `status` is `failed` or `cancelled`. What a program has put
    into the fields of `body` is not read: it may be long, or have numbers that nobody can read."""
    told = msgspec.json.decode(body, type=dict[str, Raw])
    return msgspec.json.encode({**told, "status": status, "error": error}).decode()
