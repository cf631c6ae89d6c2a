"""forward.wit: the Transformer (paper, section 4.2)."""

from __future__ import annotations

from ..inferlets.inferlet import Inferlet
from .handles import clock, queue_of


def forward(
    inferlet: Inferlet,
    queue: int,
    context: list[int],
    input_embeds: list[int],
    output_pages: list[int],
    output_embeds: list[int],
) -> None:
    found = queue_of(inferlet, queue)
    found.account.forward(found.number, context, input_embeds, output_pages, output_embeds, clock())
