"""Exports: pages that inferlets of one tenant share by name (paper, section 4.1).

An exported page is sealed: everybody who exported or imported it reads it, and nobody writes to it. Exports outlive
their maker, as long as memory is not needed for something else.
"""

from __future__ import annotations

import json
from array import array
from base64 import b64decode, b64encode
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from inferlet_sdk import bindings
from inferlet_sdk.addresses import Pages
from inferlet_sdk.errors import call
from inferlet_sdk.futures import HostFuture, await_done
from inferlet_sdk.traits.arguments import HasQueue, numbers, page_ranges, queue_number, text, whole

__all__ = [
    "ExportInfo",
    "Imported",
    "export_kvpage",
    "export_prefix",
    "import_kvpage",
    "import_prefix",
    "known_prefix",
    "list_exports",
    "pin_exports",
    "unexport_kvpage",
]


@dataclass(frozen=True)
class Imported:
    """What `import_kvpage` gives."""

    pages: Pages
    """Addresses of pages that may be read, and not written to."""
    tokens: tuple[int, ...]
    """What is in their slots, in order; empty if their maker did not tell."""
    positions: tuple[int, ...]
    """The position of each slot; -1: it holds no token."""
    hidden: tuple[int, ...]
    """Places, along the pages, of tokens that `mask_kvpage` has hidden."""


@dataclass(frozen=True)
class ExportInfo:
    """An export."""

    name: str
    pages: int
    tokens: int
    """In its slots."""


def export_kvpage(
    queue: int | HasQueue, name: str, pages: Pages | Iterable[int], tokens: Sequence[int] = ()
) -> HostFuture[None]:
    """Gives pages a name, and seals them; `tokens` are what they hold, for those who import them. An older export
    of this name makes room.

    Await it before the program ends if the pages may still be written: otherwise nothing is exported. Raises
    InvalidState while a decode run writes to a page.
    """
    number, named = queue_number(queue), text(name, "name")
    ranges, packed = page_ranges(pages, "pages"), _packed(tokens)
    return HostFuture(call(bindings.exports.export_kvpage, number, named, ranges, packed), await_done)


def import_kvpage(queue: int | HasQueue, name: str) -> HostFuture[Imported]:
    """Pages that were exported under a name; waits for what writes them. The future raises NotFound if there is no such
    export here, which costs little, and QuotaExceeded if the inferlet may not hold so many pages."""
    future = call(bindings.exports.import_kvpage, queue_number(queue), text(name, "name"))
    return HostFuture(future, await_import)


def await_import(future: int) -> Imported:
    """The value of an `import_kvpage` future."""
    first, count, about = bindings.exports.await_import(future)
    info = json.loads(about)
    ranges = zip(info["hidden"][::2], info["hidden"][1::2], strict=True)
    return Imported(
        Pages((first, count)),
        tuple(array("I", b64decode(info["tokens"]))),
        tuple(array("i", b64decode(info["positions"]))),
        tuple(place for begin, length in ranges for place in range(begin, begin + length)),
    )


def unexport_kvpage(queue: int | HasQueue, name: str) -> HostFuture[None]:
    """Takes an export back; those who have imported it keep their pages. The future raises NotFound if there is
    none."""
    future = call(bindings.exports.unexport_kvpage, queue_number(queue), text(name, "name"))
    return HostFuture(future, await_done)


def list_exports(queue: int | HasQueue, prefix: str = "") -> HostFuture[list[ExportInfo]]:
    """The exports of the tenant whose names begin with `prefix`, at most 256, the last used ones first."""
    future = call(bindings.exports.list_exports, queue_number(queue), text(prefix, "prefix"))
    return HostFuture(future, await_listing)


def await_listing(future: int) -> list[ExportInfo]:
    """The value of a `list_exports` future."""
    listed = json.loads(bindings.core.await_text(future))
    return [ExportInfo(one["name"], one["pages"], one["tokens"]) for one in listed]


def export_prefix(
    queue: int | HasQueue, pages: Pages | Iterable[int], tokens: Sequence[int], apart: str = ""
) -> HostFuture[None]:
    """Offers full pages, which hold the tokens of the beginning of a text at positions from 0 on, to all inferlets of
    the tenant whose texts begin alike, and seals them. What is there already is not kept twice. `apart`: only who gives
    the same text finds them. At a model with states, one is behind all these tokens, which need not fill the last page.

    Await it, or another future of a later command, before the program ends. Raises InvalidState while a decode run
    writes to a page.
    """
    number, ranges = queue_number(queue), page_ranges(pages, "pages")
    future = call(bindings.exports.export_prefix, number, ranges, _packed(tokens), text(apart, "apart"))
    return HostFuture(future, await_done)


def import_prefix(queue: int | HasQueue, tokens: Sequence[int], apart: str = "") -> HostFuture[Pages]:
    """The pages of the longest beginning of a text that was offered, all full; no pages, if there are none. Waits for
    what writes them. The future raises QuotaExceeded if the inferlet may not hold so many pages. At a model with states
    the last page may hold fewer tokens: `find_state` says how many there are, with a state behind them."""
    future = call(bindings.exports.import_prefix, queue_number(queue), _packed(tokens), text(apart, "apart"))
    return HostFuture(future, await_prefix)


def await_prefix(future: int) -> Pages:
    """The value of an `import_prefix` future."""
    return Pages(bindings.exports.await_prefix(future))


def known_prefix(queue: int | HasQueue, tokens: Sequence[int], apart: str = "") -> HostFuture[int]:
    """How many first pages of a text were offered, or are being written. At a model with states `import_prefix` gives
    fewer of them, where no state was left: there the text has parted from another one."""
    given = queue_number(queue), "", _packed(tokens), text(apart, "apart"), 0
    return HostFuture(call(bindings.exports.pin_exports, *given), await_known)


def await_known(future: int) -> int:
    """The value of a `known_prefix` future."""
    return int(json.loads(bindings.core.await_text(future))["known"])


def pin_exports(
    queue: int | HasQueue, name: str, seconds: int, tokens: Sequence[int] = (), apart: str = ""
) -> HostFuture[int]:
    """Keeps exports for some seconds, at most a day, even when memory is short: that of a name, or with the name ""
    those that have the beginning of a text. The future gives how many of their pages are pinned, from the first one on:
    fewer if not all are there, or if more would be pinned than a quarter of the pages that the tenant may hold."""
    packed = _packed(tokens)
    named = text(name, "name"), packed, text(apart, "apart"), whole(seconds, "seconds")
    return HostFuture(call(bindings.exports.pin_exports, queue_number(queue), *named), await_pinned)


def await_pinned(future: int) -> int:
    """The value of a `pin_exports` future."""
    return int(json.loads(bindings.core.await_text(future))["pages"])


def _packed(tokens: Sequence[int]) -> str:
    return b64encode(array("I", numbers(tokens, "tokens", "a token id"))).decode()
