"""IntrospectiveForward: what attention looks at (paper, section 4.4)."""

from __future__ import annotations

from collections.abc import Iterable

from inferlet_sdk import bindings
from inferlet_sdk.addresses import Embeds, Pages
from inferlet_sdk.futures import HostFuture
from inferlet_sdk.traits.arguments import HasQueue
from inferlet_sdk.traits.forwarding import Mask, forward_lists, named_adapter, run

__all__ = [
    "forward_with_adapter_and_scores",
    "forward_with_scores",
]


def forward_with_scores(
    queue: int | HasQueue,
    context: Pages | Iterable[int],
    input_embeds: Embeds | Iterable[int],
    output_pages: Pages | Iterable[int] = (),
    output_embeds: Embeds | Iterable[int] = (),
    *,
    mask: Mask | None = None,
    adapter: str = "",
) -> HostFuture[list[float]]:
    """Does `forward`, and gives the score of each token that it saw: first those of `context` that are not hidden and
    are at a smaller position than some input, in their order, then the inputs.

    The score of a token is the weight of attention that all inputs together give to it, as the mean over heads and
    layers, so the scores add up to the number of inputs. It costs much more than `forward`: ask now and then. Raises
    InvalidArgument for more inputs than go into one batch, and for very many pairs of an input and a token.
    """
    lists = forward_lists(queue, context, input_embeds, output_pages, output_embeds)
    return HostFuture(run(*lists, mask=mask, adapter=adapter, scores=True), bindings.core.await_floats)


def forward_with_adapter_and_scores(
    queue: int | HasQueue,
    adapter: str,
    context: Pages | Iterable[int],
    input_embeds: Embeds | Iterable[int],
    output_pages: Pages | Iterable[int] = (),
    output_embeds: Embeds | Iterable[int] = (),
) -> HostFuture[list[float]]:
    """Does `forward_with_scores` with an adapter, as `forward_with_adapter`. Raises NotFound if the model has no such
    adapter."""
    lists = queue, context, input_embeds, output_pages, output_embeds
    return forward_with_scores(*lists, adapter=named_adapter(adapter))
