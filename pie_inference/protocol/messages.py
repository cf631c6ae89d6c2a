"""Messages between the control layer and a worker (paper, sections 5.2, 5.3 and 6.2).

A *wave* is one message: batches of commands, at most one of each kind, in the order in which the worker runs them.
Waves run in the order in which they are sent. Within a wave the control layer puts SwapOut first, for it frees pages
that the rest may fill, then SwapIn, CopyKvpage, EmbedTxt, Forward, and last what reads outputs.

The worker knows slot numbers only: the KV pool is a flat array of `num_pages * page_size` slots, the host pool an array
of `num_host_pages` pages, the embed pool an array of `num_embeds` vectors, the token slots an array of integers that
`Sample` writes and `EmbedTxt` may read before the control layer has seen the value. Who owns what is decided
elsewhere.

Arrays are numpy arrays; N is the number of commands of a batch, T the number of its input tokens.
"""

from __future__ import annotations

from typing import Any

import msgspec
from numpy.typing import NDArray

PROTOCOL_VERSION = 3
"""Raised by every change of this file that an older peer would misread; checked when a worker connects."""

Array = NDArray[Any]
"""A numpy array; it travels as raw bytes behind the header."""


class Message(msgspec.Struct, frozen=True, tag=True, eq=False):
    """Base of everything on the wire."""


# ---- batches: what a wave consists of ------------------------------------------------------------------------------


class SwapOut(Message, frozen=True):
    """Copies whole pages to the host's memory; M is at most `max_swap_pages`. Later batches may overwrite the pages."""

    pages: Array  # int32 [M]
    host_pages: Array  # int32 [M], no host page twice


class SwapIn(Message, frozen=True):
    """Copies whole pages back; M is at most `max_swap_pages`. Later batches may overwrite the host pages."""

    host_pages: Array  # int32 [M]
    pages: Array  # int32 [M], no page twice


class CopyKvpage(Message, frozen=True):
    """Copies keys and values of all layers, slot by slot; sources are read before targets are written."""

    source: Array  # int32 [M]
    target: Array  # int32 [M], no slot twice


class EmbedTxt(Message, frozen=True):
    """Fills embeds from tokens."""

    embeds: Array  # int32 [T], no embed twice
    tokens: Array  # int32 [T]; -(s + 1) means: the token in token slot s


class Forward(Message, frozen=True):
    """Runs the Transformer over N ragged sequences.

    For sequence n, queries are the rows q_indptr[n]:q_indptr[n+1]. All keys and values of the batch are written to
    their slots before any attention runs. The keys of sequence n are the slots of its runs
    kv_indptr[n]:kv_indptr[n+1], in order; its own new tokens are the last of them, and query j of q sees all keys but
    the last q - 1 - j (causal, bottom-right aligned). If `mask_indptr` is given and mask_indptr[n] < mask_indptr[n+1],
    row-major bits [q, keys] replace that rule; a query that sees no key gives zeros in attention.
    """

    q_indptr: Array  # int32 [N + 1]
    q_embeds: Array  # int32 [T], embed that is the input
    q_positions: Array  # int32 [T]
    q_slots: Array  # int32 [T], KV slot that the token's key and value go to, no slot twice
    kv_indptr: Array  # int32 [N + 1], offsets into the runs
    kv_pages: Array  # int32 [R], page of a run
    kv_begins: Array  # int32 [R], first slot of the run within its page
    kv_ends: Array  # int32 [R], behind the last slot of the run within its page
    dense: Array  # bool [N]: runs begin at 0 and all but the last fill their page, so a page list describes the keys
    out_rows: Array  # int32 [O], rows of T whose output is kept
    out_embeds: Array  # int32 [O], embeds that it goes to, no embed twice
    mask_indptr: Array | None = None  # int64 [N + 1], byte offsets into mask_bits
    mask_bits: Array | None = None  # uint8, lowest bit first, each sequence starts at a byte


class Sample(Message, frozen=True):
    """Samples one token for each embed. Reproducible: the only randomness is `uniform`."""

    embeds: Array  # int32 [N]
    token_slots: Array  # int32 [N], no slot twice
    temperature: Array  # float32 [N], 0 is greedy
    top_k: Array  # int32 [N], 0: all
    top_p: Array  # float32 [N], 1: all
    min_p: Array  # float32 [N], 0: all
    uniform: Array  # float64 [N] in [0, 1)
    repetition: Array  # float32 [N], 1: none
    frequency: Array  # float32 [N], 0: none
    presence: Array  # float32 [N], 0: none
    recent_indptr: Array  # int32 [N + 1]
    recent: Array  # int32, tokens that penalties count; -(s + 1) means token slot s
    allowed_rows: Array  # int32 [N], row of `allowed`, or -1: all tokens
    allowed: Array  # uint8 [rows, ceil(vocab / 8)], lowest bit first


class GetNextDist(Message, frozen=True):
    """The most probable next tokens at each embed."""

    embeds: Array  # int32 [N]
    k: Array  # int32 [N], >= 1
    temperature: Array  # float32 [N], > 0


class GetLogprobs(Message, frozen=True):
    """Log-probabilities of given tokens at each embed."""

    embeds: Array  # int32 [N]
    indptr: Array  # int32 [N + 1]
    tokens: Array  # int32 [indptr[N]]


Batch = SwapOut | SwapIn | CopyKvpage | EmbedTxt | Forward | Sample | GetNextDist | GetLogprobs


# ---- control layer to worker ----------------------------------------------------------------------------------------


class Hello(Message, frozen=True):
    """First message on a connection."""

    protocol: int


class RunWave(Message, frozen=True):
    """Run these batches in order; answered by one `WaveDone`."""

    wave: int
    model: str
    batches: tuple[Batch, ...]


class Shutdown(Message, frozen=True):
    """Finish the wave at hand and exit."""


ToWorker = Hello | RunWave | Shutdown


# ---- worker to control layer ----------------------------------------------------------------------------------------


class ModelDescription(Message, frozen=True):
    """A model as its worker serves it."""

    name: str
    architecture: str  # such as LlamaForCausalLM
    traits: tuple[str, ...]
    dtype: str
    device: str
    vocab_size: int
    hidden_size: int
    max_context: int
    page_size: int
    num_pages: int
    num_host_pages: int
    num_embeds: int
    num_token_slots: int
    max_batch_tokens: int  # input tokens in one Forward
    max_batch_rows: int  # commands in one Sample, GetNextDist or GetLogprobs
    max_dist: int  # largest k of GetNextDist
    max_swap_pages: int  # pages in one SwapOut or SwapIn
    stop_tokens: tuple[int, ...]
    tokenizer: bytes  # tokenizer.json
    tokenizer_config: dict[str, object]  # chat_template, bos_token, eos_token, ... as in tokenizer_config.json
    page_bytes: int  # memory of one page, all layers, all ranks
    weight_bytes: int  # all ranks; what each of them holds whole is counted for each


class Ready(Message, frozen=True):
    """Answer to `Hello`, once the model is loaded and the pools stand."""

    protocol: int
    pid: int
    models: tuple[ModelDescription, ...]


class SampleResult(Message, frozen=True):
    """Of `Sample`."""

    tokens: Array  # int32 [N]


class GetNextDistResult(Message, frozen=True):
    """Of `GetNextDist`: N ragged rows, most probable first; equal probabilities in the order of token ids."""

    indptr: Array  # int32 [N + 1]
    tokens: Array  # int32
    probabilities: Array  # float32
    rest: Array  # float32 [N], probability mass left out


class GetLogprobsResult(Message, frozen=True):
    """Of `GetLogprobs`, in its order."""

    logprobs: Array  # float32 [indptr[N]]


class Failure(Message, frozen=True):
    """A batch failed; neither it nor those behind it in the wave took effect."""

    message: str


Result = SampleResult | GetNextDistResult | GetLogprobsResult | Failure | None


class WaveDone(Message, frozen=True):
    """One result for each batch of the wave, in order; None where a batch has nothing to tell. After a `Failure`, the
    remaining batches answer with the same `Failure`."""

    wave: int
    results: tuple[Result, ...]
    seconds: float  # time that the wave took on the worker


class WorkerFailed(Message, frozen=True):
    """The worker cannot serve (unreadable checkpoint, wrong protocol, out of memory) and ends."""

    message: str


FromWorker = Ready | WaveDone | WorkerFailed
