"""What a page table notes of a page, so that the usual forward need not look at its slots (pages.py): the number of its
tokens, or IRREGULAR if they are not its first slots or one is hidden; and the largest position, or EMPTY."""

from __future__ import annotations

import numpy as np

from .slots import EMPTY, HIDDEN, Slots, is_token

IRREGULAR = -2


def summary(page: Slots) -> tuple[int, int]:
    """The summary of one page. (For so few numbers, lists are several times as fast as arrays.)"""
    slots: list[int] = page.tolist()
    fill = slots.index(EMPTY) if EMPTY in slots else len(slots)
    tokens, rest = slots[:fill], slots[fill:]
    if min(tokens, default=0) > EMPTY and max(rest, default=EMPTY) == EMPTY and min(rest, default=EMPTY) > HIDDEN:
        return fill, max(tokens, default=EMPTY)
    count = sum([slot > EMPTY or slot <= HIDDEN for slot in slots])
    regular = min(slots[:count], default=0) > EMPTY
    return count if regular else IRREGULAR, max(*slots, EMPTY)


def summaries(pages: Slots) -> tuple[list[int], list[int]]:
    """The summaries of many pages: [page, slot]."""
    counts = is_token(pages).sum(axis=1)
    seen = (pages > EMPTY).cumprod(axis=1).sum(axis=1)  # before the first one that is not
    fills = np.where(seen == counts, counts, IRREGULAR)
    return fills.tolist(), np.maximum(pages.max(axis=1), EMPTY).tolist()
