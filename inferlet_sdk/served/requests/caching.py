"""What a request says about keeping its prompt: marks of Anthropic's `cache_control`, and OpenAI's `prompt_cache_key`
and `prompt_cache_retention`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from inferlet_sdk.served.errors import Refused
from inferlet_sdk.served.fields import Fields

MOST_MARKS = 4
FIELD = "cache_control"
TTLS = {"5m": 300, "1h": 3600}
KEYED, RETAINED = 300, 24 * 3600
"""Seconds for which a prompt with a `prompt_cache_key` is pinned, and one with a retention of 24 hours."""

Translate = Callable[[Fields], Sequence[Any]]


class CacheMark(NamedTuple):
    """It stands behind the first `messages` messages of a conversation and `text`, the beginning of the next one, if
    that is not None, and pins what is before it for `seconds`."""

    seconds: int
    messages: int
    text: str | None = None


def cache_marks(fields: Fields, system: int, translate: Translate) -> list[CacheMark]:
    """The marks of a request, in order. `system`: how many messages the conversation begins with that `messages` does
    not have. `translate` gives the messages of the conversation for one of these. Raises Refused."""
    first = [block for name in ("tools", "system") for block in _blocks(fields, name)]
    marks = [CacheMark(seconds, system) for block in first if (seconds := _seconds(block))]
    behind = system
    for message in fields.objects("messages"):
        before, behind = behind, behind + len(translate(message))
        blocks = _blocks(message, "content")
        for place, block in enumerate(blocks):
            if seconds := _seconds(block):
                is_last = place + 1 == len(blocks)
                marks.append(CacheMark(seconds, *((behind, None) if is_last else _within(before, blocks[: place + 1]))))
    if seconds := _seconds(fields):
        marks.append(CacheMark(seconds, behind))
    if len(marks) > MOST_MARKS:
        raise Refused(f"{FIELD}: at most {MOST_MARKS} blocks may have it, not {len(marks)}", FIELD)
    if any(one.seconds < other.seconds for one, other in pairwise(marks)):
        raise Refused(f'{FIELD}: those with a ttl of "1h" come before those of "5m"', FIELD)
    return marks


def pinned_seconds(fields: Fields) -> int:
    """For how long OpenAI's fields pin a prompt; 0: they do not. Raises Refused."""
    kept = fields.one_of("prompt_cache_retention", ("in_memory", "in-memory", "24h"), "")
    return RETAINED if kept == "24h" else KEYED if fields.text("prompt_cache_key") else 0


def _blocks(fields: Fields, name: str) -> list[Fields]:
    return fields.objects(name) if isinstance(fields.get(name), list) else []


def _seconds(block: Fields) -> int:
    """For how long the mark of a block pins what is before it; 0: it has none."""
    mark = block.object(FIELD)
    if mark.values and mark.text("type") != "ephemeral":
        raise mark.wrong("type", "ephemeral")
    return TTLS[mark.one_of("ttl", tuple(TTLS), "5m")] if mark.values else 0


def _within(before: int, blocks: Sequence[Fields]) -> tuple[int, str | None]:
    """A mark behind these blocks of a message, which has more: before all of it, unless they are texts."""
    texts = [one.text("text") for one in blocks if one.text("type") == "text"]
    return before, "\n".join(texts) if len(texts) == len(blocks) else None
