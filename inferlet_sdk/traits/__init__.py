"""Every call of the inferlet API under its own name, one module per WIT interface.

Calls take effect in the order of their queue. Those that have a result to wait for return a `HostFuture` at once:
`await` it (or `.result()` in a program without asyncio). Refused calls raise a `PieError`.
"""

from inferlet_sdk.traits.allocate import (
    alloc_emb,
    alloc_kvpage,
    copy_kvpage,
    dealloc_emb,
    dealloc_kvpage,
    trim_kvpage,
)
from inferlet_sdk.traits.core import (
    available_models,
    available_traits,
    cancel,
    create_queue,
    destroy_queue,
    get_arg,
    get_env,
    get_model_info,
    log,
    now,
    receive,
    send,
    set_queue_priority,
    set_result,
    sleep,
    synchronize,
    usage,
    wait,
)
from inferlet_sdk.traits.forward import forward
from inferlet_sdk.traits.fused import (
    create_sampler,
    destroy_sampler,
    forward_with_sampling,
    sample,
    sample_constrained,
)
from inferlet_sdk.traits.input_text import embed_txt
from inferlet_sdk.traits.output_text import Dist, get_logprobs, get_next_dist
from inferlet_sdk.traits.tokenize import (
    create_detokenizer,
    destroy_detokenizer,
    detokenize,
    format_chat,
    get_vocabs,
    push_tokens,
    tokenize,
)

__all__ = [
    "Dist",
    "alloc_emb",
    "alloc_kvpage",
    "available_models",
    "available_traits",
    "cancel",
    "copy_kvpage",
    "create_detokenizer",
    "create_queue",
    "create_sampler",
    "dealloc_emb",
    "dealloc_kvpage",
    "destroy_detokenizer",
    "destroy_queue",
    "destroy_sampler",
    "detokenize",
    "embed_txt",
    "format_chat",
    "forward",
    "forward_with_sampling",
    "get_arg",
    "get_env",
    "get_logprobs",
    "get_model_info",
    "get_next_dist",
    "get_vocabs",
    "log",
    "now",
    "push_tokens",
    "receive",
    "sample",
    "sample_constrained",
    "send",
    "set_queue_priority",
    "set_result",
    "sleep",
    "synchronize",
    "tokenize",
    "trim_kvpage",
    "usage",
    "wait",
]
