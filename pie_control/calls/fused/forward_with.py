"""A forward with what is said beside it, in any combination: a mask, an adapter, and what is read at once.

What it does, `forward`, `forward_with_scores`, `forward_with_dist` and `forward_with_sampling` do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from pie_control.errors import InvalidArgument
from pie_control.resources.address_space import AddressSpace

from ..adapters import NO_ADAPTER, find_adapter
from ..forward import forward
from ..introspective_forward import forward_with_scores
from ..sampler import Sampler
from . import forward_with_dist, forward_with_sampling
from .step import Way


class WantedDist(msgspec.Struct, forbid_unknown_fields=True):
    """Arguments of `get_next_dist`."""

    k: int = 0
    temperature: float = 1.0


class Options(msgspec.Struct, forbid_unknown_fields=True):
    """The JSON text of this name (fused.wit)."""

    adapter: str = ""  # "": none
    scores: bool = False
    dist: WantedDist | None = None
    sampler: int | None = None  # its number

    @property
    def reads(self) -> bool:
        """Whether there is something that a future gives."""
        return self.scores or self.dist is not None or self.sampler is not None

    def calls(self) -> Iterator[str]:
        """The calls whose traits the model needs for it."""
        if self.adapter:
            yield "forward_with_adapter"
        if self.scores:
            yield "forward_with_scores"


def parse(text: str) -> Options:
    """Raises InvalidArgument."""
    try:
        options = msgspec.json.decode(text or "{}", type=Options)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise InvalidArgument(f"options are a JSON object with adapter, scores, dist and sampler: {error}") from None
    if options.scores + (options.dist is not None) + (options.sampler is not None) > 1:
        raise InvalidArgument("options ask for several of scores, dist and sampler: one of them can be read at once")
    return options


def issue(
    space: AddressSpace,
    queue: int,
    tokens: Sequence[int],
    positions: Sequence[int],
    input_embeds: Sequence[int],
    context: Sequence[int],
    output_pages: Sequence[int],
    output_embeds: Sequence[int],
    mask: Sequence[int],
    options: Options,
    sampler: Sampler | None,
    future: int,
) -> None:
    """`future` is for nothing where the options ask for nothing. If a part is refused, nothing has happened. Raises as
    the calls that it does, and InvalidArgument where the lists do not fit the options."""
    space.check_queue(queue)
    adapter = find_adapter(space, options.adapter) if options.adapter else NO_ADAPTER
    columns = mask or None
    if options.dist is None and sampler is None:
        if tokens or positions:
            raise InvalidArgument("tokens go with dist or sampler: without one of them, fill the inputs by embed-txt")
        lists = context, input_embeds, output_pages, output_embeds
        if options.scores:
            forward_with_scores.issue(space, queue, *lists, future, adapter=adapter, mask=columns)
        else:
            forward.issue(space, queue, *lists, adapter=adapter, mask=columns)
        return
    way = Way(tokens, positions, input_embeds, context, output_pages, _only(output_embeds), adapter, columns)
    if options.dist is not None:
        forward_with_dist.issue_way(space, queue, way, options.dist.k, options.dist.temperature, future)
    elif sampler is not None:
        forward_with_sampling.issue_way(space, queue, way, sampler, future)


def _only(output_embeds: Sequence[int]) -> int:
    if len(output_embeds) != 2 or output_embeds[1] != 1:
        raise InvalidArgument("dist and sampler read one output embed: name one, as a range of length 1")
    return output_embeds[0]
