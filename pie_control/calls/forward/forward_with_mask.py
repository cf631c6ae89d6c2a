"""`forward` with a mask: which tokens each query sees, in place of the rule by positions."""

from __future__ import annotations

from collections.abc import Sequence

from pie_control.resources.address_space import AddressSpace

from ..kind import define
from . import forward


def issue(
    space: AddressSpace,
    queue: int,
    context: Sequence[int],
    input_embeds: Sequence[int],
    output_pages: Sequence[int],
    output_embeds: Sequence[int],
    mask: Sequence[int],
) -> None:
    """`mask`: for each input in turn the number of its ranges, then first and length of each. Columns are the tokens of
    the context, hidden or not, then the inputs. Raises as `forward`, and InvalidArgument (mask)."""
    forward.issue(space, queue, context, input_embeds, output_pages, output_embeds, mask=mask)


CALL = define(__name__, issue)
