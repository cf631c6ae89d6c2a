"""A context as JSON text, which outlives its inferlet: tokens and messages, not keys, which are computed again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from inferlet_sdk.errors import InvalidArgument
from inferlet_sdk.filling.conversation import Conversation
from inferlet_sdk.images import Seen, as_image
from inferlet_sdk.sequences.dropping import check_droppable
from inferlet_sdk.sequences.queues import queues_of
from inferlet_sdk.sequences.sequence import TokenSequence
from inferlet_sdk.traits.arguments import flag, numbers, text, whole

VERSION = 2
_KEYS = {"model", "adapter", "position", "share", "tokens", "drops", "images", "conversation"}


def snapshot_of(sequence: TokenSequence, conversation: Conversation) -> str:
    """All that makes the context; messages are JSON already."""
    kept: dict[str, Any] = {
        "version": VERSION,
        "model": sequence.info.name,
        "adapter": sequence.adapter,
        "position": sequence.offset + sum(gap for *_, gap in sequence.drops),
        "share": sequence.shares,
        "shared_with": sequence.shared_with,
        "tokens": sequence.tokens,
        "drops": [one for one in sequence.drops if one[0] < one[1]],
        "images": [(seen.image.name, seen.start, seen.end) for seen in sequence.images.places],
        "conversation": conversation.state(),
    }
    return json.dumps(kept, ensure_ascii=False, separators=(",", ":"))


def restore(snapshot: str) -> tuple[TokenSequence, Conversation]:
    """What a snapshot was made of; tokens that were dropped run, and are dropped, again. Raises InvalidArgument if it
    is no snapshot, NotFound if its model or the blob of an image is not there."""
    kept = _parse(snapshot)
    if missing := _KEYS - kept.keys():
        raise InvalidArgument(
            f"the snapshot lacks {', '.join(sorted(missing))}: give it as `Context.snapshot` has made it"
        )
    try:
        return _restored(kept)
    except (TypeError, ValueError, LookupError, AttributeError) as error:  # a client may have changed it
        raise InvalidArgument(
            f"the snapshot was changed: give it as `Context.snapshot` has made it ({error})"
        ) from None


def _restored(kept: Mapping[str, Any]) -> tuple[TokenSequence, Conversation]:
    sequence = TokenSequence(queues_of(text(kept["model"], "model")), adapter=text(kept["adapter"], "adapter"))
    try:
        sequence.offset, sequence.shares = whole(kept["position"], "position"), flag(kept["share"], "share")
        sequence.shared_with = text(kept.get("shared_with", ""), "shared_with")  # older snapshots have none
        sequence.tokens = numbers(kept["tokens"], "tokens")
        sequence.half = count = len(sequence.tokens)
        for name, start, end in kept["images"]:
            places = whole(start, "images", most=count), whole(end, "images", most=count)
            sequence.images.places.append(Seen(as_image(name), *places))
        conversation = Conversation.of_state(kept["conversation"])
        for start, stop, computed, gap in kept["drops"]:
            check_droppable(whole(computed, "drops", most=count) + 1, whole(start, "drops"), whole(stop, "drops"))
            sequence.drop(start, stop, whole(gap, "drops") > 0, computed)
    except BaseException:
        sequence.close()
        raise
    return sequence, conversation


def _parse(snapshot: str) -> Mapping[str, Any]:
    try:
        kept = json.loads(text(snapshot, "snapshot"))
    except ValueError as error:
        raise InvalidArgument(f"this is no snapshot of a context: {error}") from None
    if not isinstance(kept, dict) or "version" not in kept:
        raise InvalidArgument("this is no snapshot of a context: give what `Context.snapshot` has made")
    if kept["version"] != VERSION:
        raise InvalidArgument(f"the snapshot has version {kept['version']}, and this SDK reads version {VERSION}")
    return kept
