"""ForwardWithAdapter: LoRA adapters beside the model (paper, section 4.4)."""

from __future__ import annotations

from collections.abc import Iterable

from inferlet_sdk.addresses import Embeds, Pages
from inferlet_sdk.traits.arguments import HasQueue
from inferlet_sdk.traits.forwarding import forward_lists, named_adapter, run

__all__ = ["forward_with_adapter"]


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
