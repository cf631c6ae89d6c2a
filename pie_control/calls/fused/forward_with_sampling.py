"""`embed_txt`, `forward` and `sample` in one call (paper, section 7.4)."""

from __future__ import annotations

from collections.abc import Sequence

from pie_control.resources.address_space import AddressSpace

from ..forward import forward
from ..input_text import embed_txt
from ..kind import define
from ..sampler import Sampler
from . import sample


def issue(
    space: AddressSpace,
    queue: int,
    tokens: Sequence[int],
    positions: Sequence[int],
    input_embeds: Sequence[int],
    context: Sequence[int],
    output_pages: Sequence[int],
    output_embed: int,
    sampler: Sampler,
    future: int,
) -> None:
    """With one output embed. If one of the three is refused, those before it have been issued. Raises as they do."""
    embed_txt.issue(space, queue, tokens, positions, input_embeds)
    forward.issue(space, queue, context, input_embeds, output_pages, (output_embed, 1))
    sample.issue(space, queue, output_embed, sampler, future)


CALL = define(__name__, issue, value=sample.Token)
