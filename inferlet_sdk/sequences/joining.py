"""Sequences behind each other, each as it was computed alone: modular caching (Gim et al. 2024, Prompt Cache)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from inferlet_sdk.errors import InvalidArgument, InvalidState
from inferlet_sdk.sequences.dropping import check_output
from inferlet_sdk.sequences.page_table import Part
from inferlet_sdk.sequences.sequence import TokenSequence
from inferlet_sdk.sequences.states.kept import check_states


def join_sequences(parts: Sequence[TokenSequence]) -> TokenSequence:
    """Their tokens behind each other, with keys as each part has computed them, but of the last token: that runs again,
    at a position behind all, and sees all. A part that is not behind those before it is moved there, if the model can
    move tokens. Its keys are not shared."""
    _check(parts)
    whole = TokenSequence(parts[0].queues, adapter=parts[0].adapter)
    try:
        _join(whole, parts)
    except BaseException:
        whole.close()
        raise
    return whole


def _join(whole: TokenSequence, parts: Sequence[TokenSequence]) -> None:
    behind, joined, begins = 0, list[Part](), list[tuple[int, int]]()  # behind: the highest position
    for place, part in enumerate(parts):
        count = len(part.tokens) - (place == len(parts) - 1)
        with part:
            part.compute(count, ())
        kept = part.pages.kept(count)
        by = max(behind - part.position(kept[0][0]), 0) if kept and part.info.moves_tokens else 0
        joined.append(Part(part.pages, kept, by))
        if not part.pages.dropped:
            whole.images.append(part.images, len(whole.tokens))
        for start, stop in kept:
            gaps = (token for token, end, *_ in part.drops if start < token == end < stop)
            begins += [(len(whole.tokens) + token - start, part.position(token) + by) for token in (start, *gaps)]
            whole.tokens += part.tokens[start:stop]
        behind = max(behind, part.offset + by + count)
    with whole as queue:
        whole.pages.join(queue, joined)
    whole.computed = len(whole.tokens)
    whole.tokens.append(parts[-1].tokens[-1])
    lay(whole, begins, behind)
    whole.shares = False  # what runs all of these tokens in one piece has other keys


def lay(sequence: TokenSequence, begins: Iterable[tuple[int, int]], behind: int) -> None:
    """Where the tokens of a sequence are that have keys: each of `begins` is a token, and its position, which those
    behind it follow. What will run is at `behind` and further on. A gap is kept as tokens dropped that were not there:
    what is cut before it goes on where it ends."""
    (first, start), *others = [*begins, (sequence.computed, max(behind, sequence.computed))]
    sequence.offset = max(start - first, 0)
    for token, position in others:
        if (gap := position - token - sequence.offset) > 0 or token == sequence.computed:
            sequence.drops += [(token, token, token, -gap)] * (gap != 0)
            sequence.offset += gap


def _check(parts: Sequence[TokenSequence]) -> None:
    for part in parts:
        check_states(part.info, "join")
    if not parts or not all(part.tokens for part in parts):
        raise InvalidState("join: give contexts that are not empty")
    check_output(parts[-1].pages.dropped, len(parts[-1].tokens))
    if any(part.pages.dropped and part.images.places for part in parts):
        raise InvalidState("join: tokens of a part with images were dropped")
    if len({(part.info.name, part.adapter) for part in parts}) > 1:
        raise InvalidArgument("join: the parts are of different models, or adapters")
