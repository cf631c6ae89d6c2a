"""Checks the arguments of calls before they reach the host.

The generated bindings panic on a value that does not fit its WIT type, which ends the inferlet without a Python error.
So each call of this package converts its arguments here: a wrong one is a TypeError or ValueError that names the
parameter and says what it takes. Lists are checked by `array`, at 20 ns a number.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from inspect import isawaitable
from typing import Any, Protocol

from inferlet_sdk.addresses import Addresses, Embeds, Pages, Slots
from inferlet_sdk.errors import TooLong
from inferlet_sdk.futures import HostFuture
from inferlet_sdk.texts import json_text

MOST_TEXT, MOST_TOKENS = 4 << 20, 131_072
"""Characters of a text, and numbers in a list of tokens, that one call may pass: the sandbox ends an inferlet whose
call passes more."""
LARGEST_U32 = 2**32 - 1
LARGEST_U64 = 2**64 - 1


def _told(value: object) -> str:
    """What a wrong value is, for a message."""
    if isinstance(value, HostFuture) or isawaitable(value):
        return f"a {type(value).__name__} that was not awaited: write `await ...`"
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 40 else text[:37] + '...'}"


def wrong(name: str, wanted: str, value: object) -> TypeError:
    """The error for an argument of a wrong type."""
    return TypeError(f"{name}: give {wanted}, not {_told(value)}")


def _in_range(value: int, name: str, least: int, most: int) -> int:
    if least <= value <= most:
        return value
    told = value if abs(value) < 1 << 64 else f"a number of {value.bit_length()} bits"
    raise ValueError(f"{name}: {told} is not between {least} and {most}")


def whole(value: Any, name: str, least: int = 0, most: int = LARGEST_U32, wanted: str = "a whole number") -> int:
    """A whole number from `least` to `most` (default: u32)."""
    if type(value) is int:
        return value if least <= value <= most else _in_range(value, name, least, most)
    if isinstance(value, bool) or not hasattr(type(value), "__index__"):
        raise wrong(name, wanted, value)
    return _in_range(value.__index__(), name, least, most)


class HasQueue(Protocol):
    """An object that stands for its queue, such as a `Context`."""

    @property
    def queue(self) -> int:
        """The number of its queue."""


def queue_number(queue: Any) -> int:
    """The number of a queue; a `Context` stands for its queue."""
    if type(queue) is int and 0 <= queue <= LARGEST_U32:
        return queue
    number = getattr(queue, "queue", queue)
    return whole(number, "queue", wanted="the number of a queue (from `create_queue`), or a Context")


def one_embed(embed: Any, name: str = "embed") -> int:
    """The address of one embed, also from `Embeds` of length one."""
    if type(embed) is int and 0 <= embed <= LARGEST_U32:
        return embed
    if isinstance(embed, Embeds):
        if len(embed) == 1:
            return embed[0]
        raise ValueError(f"{name}: give one embed, not {len(embed)}; an index picks one, as in embeds[0]")
    return whole(embed, name, wanted="one embed, as in embeds[0]")


def number(value: Any, name: str) -> float:
    """A number for a WIT float."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise wrong(name, "a number", value)
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"{name}: the number is too large") from None


def biases(values: Any) -> dict[int, float]:
    """What is added to logits, by token."""
    if not isinstance(values, Mapping):
        raise wrong("logit_bias", "a mapping from token ids to numbers, as in {42: -5.0}", values)
    return {
        whole(token, "logit_bias", wanted="token ids as keys"): number(value, f"logit_bias[{token}]")
        for token, value in values.items()
    }


def flag(value: Any, name: str) -> bool:
    """True or False."""
    if isinstance(value, bool):
        return value
    raise wrong(name, "True or False", value)


def text(value: Any, name: str, wanted: str = "text") -> str:
    """Text that can be encoded: surrogates without a partner would end the inferlet."""
    if not isinstance(value, str):
        raise wrong(name, wanted, value)
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"{name}: character {error.start} is half of a surrogate pair, which is no text") from None
    return _short(value, name)


def _short(value: str, name: str) -> str:
    if len(value) > MOST_TEXT:
        raise TooLong(f"{name}: {len(value)} characters are more than the {MOST_TEXT} of one call: give less at a time")
    return value


def room(tokens: int, most: int, model: str) -> int:
    """How many tokens fit behind so many in the context of a model. Raises TooLong if these do not."""
    if tokens > most:
        raise TooLong(
            f"the context has {tokens} tokens, and {model} takes at most {most}: fill less, cut it with `truncate`, or "
            "go on behind its end alone: `ctx.restarted(last=400)`"
        )
    return most - tokens


def as_json(value: Any, name: str) -> str:
    """JSON of a list of mappings."""
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise wrong(name, "a list of mappings", value)
    items = list(value)
    for place, item in enumerate(items):
        if not isinstance(item, Mapping):
            raise wrong(f"{name}[{place}]", "a mapping, such as {'role': 'user', 'content': '...'}", item)
    try:
        return _short(json_text(items), name)
    except (TypeError, ValueError, RecursionError) as error:
        raise TypeError(f"{name}: cannot be written as JSON: {error}") from None


# ---- lists of numbers ----


def numbers(values: Any, name: str, item: str = "a whole number") -> list[int]:
    """A list of u32."""
    if type(values) is not list:
        values = _as_list(values, name, item)
    try:
        array("I", values)
        return values  # type: ignore[no-any-return]
    except (TypeError, OverflowError):
        pass
    return [whole(value, f"{name}[{place}]", wanted=item) for place, value in enumerate(values)]


def _as_list(values: Any, name: str, item: str) -> list[Any]:
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        what = f"[{values!r}]" if type(values) is int else None
        raise wrong(name, f"a list, each item {item}" + (f", as in {what}" if what else ""), values)
    return list(values)


def tokens(values: Any, name: str = "tokens") -> list[int]:
    """Token ids for a call that takes values only."""
    found = numbers(values, name, "a token id")
    if len(found) > MOST_TOKENS:
        raise TooLong(f"{name}: {len(found)} tokens are more than the {MOST_TOKENS} of one call: give less at a time")
    return found


def references(values: Any, name: str = "tokens") -> list[int]:
    """Token ids, with the reference of each `TokenFuture`."""
    if type(values) is not list:
        values = _as_list(values, name, "a token id or a TokenFuture")
    try:
        array("I", values)
        return values  # type: ignore[no-any-return]
    except (TypeError, OverflowError):  # TokenFutures, or wrong items
        pass
    return numbers([getattr(token, "reference", token) for token in values], name, "a token id or a TokenFuture")


def texts(values: Any, name: str) -> list[str]:
    """A list of texts."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise wrong(name, "a list of texts", values)
    return [text(value, f"{name}[{place}]") for place, value in enumerate(values)]


def two_texts(values: Any, name: str) -> list[str]:
    """A list of two texts."""
    found = texts(values, name)
    if len(found) != 2:
        raise ValueError(f"{name}: give two texts, what comes before and what comes after, not {len(found)}")
    return found


def sampler_number(sampler: Any) -> int:
    """The number of a sampler."""
    return whole(sampler, "sampler", wanted="the number of a sampler, from `create_sampler`")


def token_mask(allowed: Any) -> bytes:
    """Bits of the tokens that may come."""
    if not isinstance(allowed, bytes | bytearray):
        raise wrong("allowed", "bytes with one bit for each token", allowed)
    return bytes(allowed)


def _ranges(values: Any, name: str, kind: type[Addresses], item: str) -> list[int]:
    if isinstance(values, kind):
        return numbers(list(values.ranges), name)
    if isinstance(values, Addresses):
        raise wrong(name, f"{kind.__name__} or a list, each item {item}", values)
    return list(kind.of(numbers(values, name, item)).ranges)


def page_ranges(values: Any, name: str) -> list[int]:
    """Flat ranges of `Pages`, or of a list of addresses."""
    return _ranges(values, name, Pages, "the address of a page")


def embed_ranges(values: Any, name: str) -> list[int]:
    """Flat ranges of `Embeds`, or of a list of addresses."""
    return _ranges(values, name, Embeds, "the address of an embed")


def slot_ranges(values: Any, name: str) -> list[int]:
    """Flat ranges of `Slots`, or of a list of addresses."""
    return _ranges(values, name, Slots, "the address of a slot, as in pages.slots(page_size)[2:5]")


def place_ranges(values: Any, name: str) -> list[int]:
    """Flat ranges of places in a list, such as `range(4, 100)`."""
    if type(values) is range and values.step == 1:
        return numbers([values.start, len(values)], name) if values else []
    if isinstance(values, Addresses):
        raise wrong(name, "places counted from 0 on, as in range(4, 100)", values)
    return list(Addresses.of(numbers(values, name, "the place of a slot along the pages")).ranges)


def mask_rows(values: Any, name: str) -> list[int]:
    """Rows of a mask: of each the number of its ranges, and the ranges."""
    rows = _as_list(values, name, "the columns that an input sees, as in range(0, 8)")
    flat: list[int] = []
    for place, row in enumerate(rows):
        ranges = place_ranges(row, f"{name}[{place}]")
        flat += [len(ranges) // 2, *ranges]
    return flat
