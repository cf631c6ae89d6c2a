"""`forward_with_scores` with a LoRA adapter beside the model's weights."""

from __future__ import annotations

from collections.abc import Sequence

from pie_control.resources.address_space import AddressSpace

from ..adapters import find_adapter
from ..kind import define
from . import forward_with_scores


def issue(
    space: AddressSpace,
    queue: int,
    adapter: str,
    context: Sequence[int],
    input_embeds: Sequence[int],
    output_pages: Sequence[int],
    output_embeds: Sequence[int],
    future: int,
) -> None:
    """Raises as `forward_with_scores`; NotFound if the model has no such adapter."""
    number = find_adapter(space, adapter)
    forward_with_scores.issue(space, queue, context, input_embeds, output_pages, output_embeds, future, adapter=number)


CALL = define(__name__, issue, value=forward_with_scores.Scores)
