"""input-text.wit: embeds from tokens (paper, section 4.2)."""

from __future__ import annotations

from ..inferlets.inferlet import Inferlet
from .handles import clock, queue_of


def embed_txt(inferlet: Inferlet, queue: int, tokens: list[int], positions: list[int], embeds: list[int]) -> None:
    found = queue_of(inferlet, queue)
    found.account.embed_txt(found.number, tokens, positions, embeds, clock())
