"""`forward` with a LoRA adapter beside the model's weights.

It is a command like that of `forward`, and goes in a batch with others, of other adapters and of none. Which adapter a
token's keys and values were computed with is the program's business.
"""

from __future__ import annotations

from collections.abc import Sequence

from pie_control.resources.address_space import AddressSpace

from ..adapters import find_adapter
from ..forward import forward
from ..kind import define


def issue(
    space: AddressSpace,
    queue: int,
    adapter: str,
    context: Sequence[int],
    input_embeds: Sequence[int],
    output_pages: Sequence[int],
    output_embeds: Sequence[int],
) -> None:
    """Raises as `forward`; NotFound if the model has no such adapter."""
    number = find_adapter(space, adapter)
    forward.issue(space, queue, context, input_embeds, output_pages, output_embeds, adapter=number)


CALL = define(__name__, issue)
