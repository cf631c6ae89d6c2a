"""Runs tokens of which some may not stay: leaves a state behind each of them, as far as there is memory.

States are bound when the command that asks for them has its turn, as many as leave some for others. So which tokens
have one is known with the answer of what reads the outputs (`find_state`); until then nothing goes on from there.
"""

from __future__ import annotations

from collections.abc import Sequence

from pie_control.errors import InvalidArgument
from pie_control.resources.address_space import AddressSpace

from ..adapters import NO_ADAPTER, find_adapter
from ..forward import plain
from ..kind import Call

MOST_DRAFTED = 64
"""Tokens of one call."""


def issue(
    space: AddressSpace,
    queue: int,
    context: Sequence[int],
    input_embeds: Sequence[int],
    output_pages: Sequence[int],
    output_embeds: Sequence[int],
    adapter: str,
) -> None:
    """Runs as `forward` with inputs that are filled. Raises InvalidArgument (no input, too many, no output pages),
    NotFound, InvalidState (embed never filled, no free slot), QuotaExceeded and Exhausted (no state for the last
    token)."""
    space.check_command(queue)
    number = find_adapter(space, adapter) if adapter else NO_ADAPTER
    inputs, positions = plain.filled(space, input_embeds)
    most = min(MOST_DRAFTED, space.model.max_batch_tokens)
    if len(positions) > most:
        raise InvalidArgument(f"{len(positions)} inputs are more than {most}: draft fewer tokens at a time")
    if not output_pages:
        raise InvalidArgument(
            "a draft without output pages leaves nothing: name the pages for its keys, or use forward"
        )
    lists = context, inputs, positions, output_pages, output_embeds
    plain.run(space, queue, plain.check(space, queue, *lists, number, None, draft=True), draft=True)


CALL = Call(__name__, issue, needs={"adapter": "forward_with_adapter"})
