"""Marks of Anthropic's `cache_control`: up to where a request asks that its prompt be kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from inferlet_sdk.served.errors import Refused
from inferlet_sdk.served.fields import Fields

MOST_MARKS = 4
FIELD = "cache_control"
TTLS = ("5m", "1h")

Translate = Callable[[Fields], Sequence[Any]]


class CacheMark(NamedTuple):
    """It stands behind the first `messages` messages of a conversation and `text`, the beginning of the next one, if
    that is not None."""

    messages: int
    text: str | None = None


def last_mark(fields: Fields, system: int, translate: Translate) -> CacheMark | None:
    """The last mark of a request; None: it has none. `system`: how many messages the conversation begins with that
    `messages` does not have. `translate` gives the messages of the conversation for one of these. Raises Refused."""
    marks = [CacheMark(system) for name in ("tools", "system") for block in _blocks(fields, name) if _is_marked(block)]
    behind = system
    for message in fields.objects("messages"):
        before, behind = behind, behind + len(translate(message))
        blocks = _blocks(message, "content")
        for place, block in enumerate(blocks):
            if _is_marked(block):
                is_last = place + 1 == len(blocks)
                marks.append(CacheMark(behind) if is_last else _within(before, blocks[: place + 1]))
    if _is_marked(fields):
        marks.append(CacheMark(behind))
    if len(marks) > MOST_MARKS:
        raise Refused(f"{FIELD}: at most {MOST_MARKS} blocks may have it, not {len(marks)}", FIELD)
    return marks[-1] if marks else None


def _blocks(fields: Fields, name: str) -> list[Fields]:
    return fields.objects(name) if isinstance(fields.get(name), list) else []


def _is_marked(block: Fields) -> bool:
    mark = block.object(FIELD)
    if mark.values and mark.text("type") != "ephemeral":
        raise mark.wrong("type", "ephemeral")
    return bool(mark.values and mark.one_of("ttl", TTLS, TTLS[0]))


def _within(before: int, blocks: Sequence[Fields]) -> CacheMark:
    """A mark behind these blocks of a message, which has more: before all of it, unless they are texts."""
    texts = [one.text("text") for one in blocks if one.text("type") == "text"]
    return CacheMark(before, "\n".join(texts) if len(texts) == len(blocks) else None)
