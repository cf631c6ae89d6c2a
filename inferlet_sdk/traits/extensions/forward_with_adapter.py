"""ForwardWithAdapter: LoRA adapters beside the model (paper, section 4.4)."""

from __future__ import annotations

from collections.abc import Iterable

from inferlet_sdk import bindings
from inferlet_sdk.addresses import Embeds, Pages
from inferlet_sdk.errors import call
from inferlet_sdk.traits.arguments import HasQueue, queue_number
from inferlet_sdk.traits.forwarding import forward_lists, named_adapter, run

__all__ = [
    "available_adapters",
    "forward_with_adapter",
]


def available_adapters(queue: int | HasQueue) -> list[str]:
    """Names of the adapters that the queue's model has now. The operator may drop them at any time."""
    return list(call(bindings.forward_with_adapter.available_adapters, queue_number(queue)))


def forward_with_adapter(
    queue: int | HasQueue,
    adapter: str,
    context: Pages | Iterable[int],
    input_embeds: Embeds | Iterable[int],
    output_pages: Pages | Iterable[int] = (),
    output_embeds: Embeds | Iterable[int] = (),
) -> None:
    """Does `forward` with an adapter. Forwards of different adapters, and of none, run in one batch.

    Keys and values are those that the adapter gives, so run the whole context with the same one, unless you know
    better. Raises NotFound if the model has no such adapter; if it is dropped before the command runs, what is computed
    from it fails with WorkerFailed.
    """
    run(*forward_lists(queue, context, input_embeds, output_pages, output_embeds), adapter=named_adapter(adapter))
