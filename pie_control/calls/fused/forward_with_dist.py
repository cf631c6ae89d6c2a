"""`embed_txt`, `forward` and `get_next_dist` in one call: a step of a program that looks at every distribution."""

from __future__ import annotations

from collections.abc import Sequence

from pie_control.resources.address_space import AddressSpace

from ..forward import forward
from ..input_text import embed_txt
from ..kind import define
from ..output_text import get_next_dist


def issue(
    space: AddressSpace,
    queue: int,
    tokens: Sequence[int],
    positions: Sequence[int],
    input_embeds: Sequence[int],
    context: Sequence[int],
    output_pages: Sequence[int],
    output_embed: int,
    k: int,
    temperature: float,
    future: int,
) -> None:
    """With one output embed. If one of the three is refused, those before it have been issued. Raises as they do."""
    embed_txt.issue(space, queue, tokens, positions, input_embeds)
    forward.issue(space, queue, context, input_embeds, output_pages, (output_embed, 1))
    get_next_dist.issue(space, queue, output_embed, k, temperature, future)


CALL = define(__name__, issue, value=get_next_dist.Dist)
