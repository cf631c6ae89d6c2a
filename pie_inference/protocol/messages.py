"""Messages between the control layer and a worker (paper, sections 5.2, 5.3 and 6.2).

A *wave* is one message: batches of commands, at most one of each kind, in the order in which the worker runs them.
Waves run in the order in which they are sent. Within a wave the control layer puts SwapOut first, for it frees pages
that the rest may fill, then SwapIn, ShiftKvpage, CopyKvpage, EmbedImg, EmbedTxt, Forward, CopyEmb, and last what reads
outputs.

The worker knows slot numbers only: the KV pool is a flat array of `num_pages * page_size` slots, the host pool an array
of `num_host_pages` pages, the embed pool an array of `num_embeds` vectors, the token slots an array of integers that
`Sample` writes and `EmbedTxt` may read before the control layer has seen the value. Who owns what is decided
elsewhere.

Arrays are numpy arrays; N is the number of commands of a batch. Each class of batches is named like its call; the
unions and tables below are derived from the classes.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, ClassVar, Self

import msgspec
import numpy as np

from . import rows as _rows  # noqa: F401  # its classes are among those below
from .batch import Array, Batch, Layout, Result, call_name

PROTOCOL_VERSION = 16
"""Raised by every change of this file that an older peer would misread; checked when a worker connects."""


# ---- batches: what a wave consists of ------------------------------------------------------------------------------


class SwapOut(Batch, frozen=True):
    """Copies whole pages to the host's memory; N is at most `max_swap_pages`. Later batches may overwrite the pages.

    A model that keeps a state of a text needs the last three: the states that hang on a page go with it, to slots that
    the host has for them (`num_host_states`). Later batches may overwrite their slots, too. A state that hangs on
    several pages goes with one of them.
    """

    ragged: ClassVar[Layout] = {"state_indptr": ("states", "host_states")}

    pages: Array  # int32 [N]
    host_pages: Array  # int32 [N], no host page twice
    state_indptr: Array | None = None  # int32 [N + 1]
    states: Array | None = None  # int32, slots of states
    host_states: Array | None = None  # int32, as many, no slot of the host twice


class SwapIn(Batch, frozen=True):
    """Copies whole pages back, with the states that hang on them, as in `SwapOut`; N is at most `max_swap_pages`. Later
    batches may overwrite the host pages, and the slots that the host has for states."""

    ragged: ClassVar[Layout] = {"state_indptr": ("host_states", "states")}

    host_pages: Array  # int32 [N]
    pages: Array  # int32 [N], no page twice
    state_indptr: Array | None = None  # int32 [N + 1]
    host_states: Array | None = None  # int32
    states: Array | None = None  # int32, as many, no slot twice


class ShiftKvpage(Batch, frozen=True):
    """Moves keys of all layers to other positions. It names where they go, not how far: one that ran already, as a part
    of a batch that failed, changes nothing."""

    ragged: ClassVar[Layout] = {"indptr": ("slots", "positions")}

    slots: Array  # int32 [M], no slot twice
    positions: Array  # int32 [M]
    indptr: Array  # int32 [N + 1]


class CopyKvpage(Batch, frozen=True):
    """Copies keys and values of all layers, slot by slot; sources are read before targets are written."""

    ragged: ClassVar[Layout] = {"indptr": ("source", "target")}

    source: Array  # int32 [M]
    target: Array  # int32 [M], no slot twice
    indptr: Array  # int32 [N + 1]


class CopyEmb(Batch, frozen=True):
    """Copies embeds; sources are read before targets are written."""

    ragged: ClassVar[Layout] = {"indptr": ("source", "target")}

    source: Array  # int32 [M]
    target: Array  # int32 [M], no embed twice
    indptr: Array  # int32 [N + 1]


class EmbedTxt(Batch, frozen=True):
    """Fills embeds from tokens."""

    ragged: ClassVar[Layout] = {"indptr": ("embeds", "tokens")}

    embeds: Array  # int32 [T], no embed twice
    tokens: Array  # int32 [T]; -(s + 1) means: the token in token slot s
    indptr: Array  # int32 [N + 1]


class EmbedImg(Batch, frozen=True):
    """Takes tiles of images through the layers begins[n]:ends[n] of the vision tower. Command n begins at layer 0 with
    the pixels tiles[rows[n]], at any other with what an earlier batch left in tile slot slots[n]. If it ends at the
    last layer, it fills its embeds with the vectors of the tile from firsts[n] on; else it leaves the state of the tile
    in the slot, and has no embeds. A slot may be read by one command and written by a later one. The wave has it before
    EmbedTxt."""

    ragged: ClassVar[Layout] = {"indptr": ("embeds",)}
    shared: ClassVar[tuple[str, ...]] = ("tiles",)

    rows: Array  # int32 [N], of `tiles`; -1 unless it begins at layer 0
    begins: Array  # int32 [N]
    ends: Array  # int32 [N]
    slots: Array  # int32 [N]
    firsts: Array  # int32 [N]
    embeds: Array  # int32 [E], no embed twice
    indptr: Array  # int32 [N + 1]
    tiles: Array  # uint8 [M, tile_size, tile_size, 3]


class Forward(Batch, frozen=True):
    """Runs the Transformer over N ragged sequences.

    For sequence n, queries are the rows q_indptr[n]:q_indptr[n+1]. All keys and values of the batch are written to
    their slots before any attention runs. The keys of sequence n are the slots of its runs
    kv_indptr[n]:kv_indptr[n+1], in order; its own new tokens are the last of them, and query j of q sees all keys but
    the last q - 1 - j (causal, bottom-right aligned). If `position_keys` is given, a query sees only those of the first
    position_keys[n] keys, which are older than the batch or of other sequences, whose position is below its own. If
    `mask_indptr` is given and mask_indptr[n] < mask_indptr[n+1], row-major bits [q, keys] replace these rules; a query
    that sees no key gives zeros in attention. A batch has one of the two at most. If `masked` is given, each query of a
    sequence n for which it is true sees the keys of its own ranges among range_indptr[n]:range_indptr[n+1], and no
    others. If `adapters` is given, sequence n
    runs with the adapter of this number.

    A model that keeps a state of a text needs `state_reads` and `state_writes`, slots of states. A slot that is written
    is written once, and read by no other sequence; a sequence may write the slot that it reads with its last row, if
    no row before has a slot.
    """

    ragged: ClassVar[Layout] = {
        "q_indptr": ("q_embeds", "q_positions", "q_slots", "state_writes"),
        "kv_indptr": ("kv_pages", "kv_begins", "kv_ends"),
        "mask_indptr": ("mask_bits",),
        "range_indptr": ("range_rows", "range_begins", "range_ends"),
    }
    shared: ClassVar[tuple[str, ...]] = ("out_rows", "out_embeds")

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
    position_keys: Array | None = None  # int32 [N], keys at the front that are seen by position; 0: none
    mask_indptr: Array | None = None  # int64 [N + 1], byte offsets into mask_bits
    mask_bits: Array | None = None  # uint8, lowest bit first, each sequence starts at a byte
    masked: Array | None = None  # bool [N]; with the next four, or none of the five
    range_indptr: Array | None = None  # int32 [N + 1], offsets into the ranges
    range_rows: Array | None = None  # int32, query of its sequence that sees a range
    range_begins: Array | None = None  # int32, its first key, counted among the keys of the sequence
    range_ends: Array | None = None  # int32, behind its last key
    adapters: Array | None = None  # int32 [N], adapters by their numbers in `LoadAdapter`; -1: none
    state_reads: Array | None = None  # int32 [N], slot with the state of the keys before the new ones; -1: a new text
    state_writes: Array | None = None  # int32 [T], slot that gets the state behind the row; -1: none

    def only(self, command: int) -> Self:
        alone = super().only(command)
        owners = np.searchsorted(
            self.q_indptr[1:-1], self.out_rows, "right"
        )  # rows of no sequence count as the last one's
        rows, embeds = self.out_rows[owners == command], self.out_embeds[owners == command]
        return msgspec.structs.replace(alone, out_rows=rows - self.q_indptr[command], out_embeds=embeds)


class ForwardWithScores(Forward, frozen=True):
    """A `Forward` that tells how much attention each key gets. It runs behind the other one of its wave."""

    def zeros(self) -> ForwardWithScoresResult:
        return ForwardWithScoresResult(_zeros(self.count() + 1, np.int32), _zeros(0, np.float32))


class GrammarStart(msgspec.Struct, frozen=True, array_like=True):
    """What the first step of a decode run with a matcher brings, as msgpack."""

    source: str  # of the grammar, as `pie_inference.grammars` compiles it
    accepted: list[int]  # tokens before the run that the matcher has accepted
    skip: int  # the run is over where so many tokens are forced; 0: it goes on, 1: over where that pays


class Sample(Batch, frozen=True):
    """Samples one token for each embed. Reproducible: the only randomness is `uniform`.

    Of most parameters None stands for what changes nothing, in all rows. `recent`, `allowed` and what tells of them are
    left out where no row has any.

    Rows of decode runs may have a matcher, which says what tokens may come beside `allowed`. `matchers` are numbers
    that the control layer gives them; one is used from the first step of its run, which has a `GrammarStart`, until
    `ended` names it. `matched` are the tokens of the run before this step.
    """

    ragged: ClassVar[Layout] = {
        "recent_indptr": ("recent",),
        "bias_indptr": ("bias_tokens", "bias_values"),
        "start_indptr": ("starts",),
    }
    shared: ClassVar[tuple[str, ...]] = ("allowed", "ended")

    embeds: Array  # int32 [N]
    token_slots: Array  # int32 [N], no slot twice
    temperature: Array  # float32 [N], 0 is greedy
    uniform: Array  # float64 [N] in [0, 1)
    top_k: Array | None = None  # int32 [N], 0: all
    top_p: Array | None = None  # float32 [N], 1: all
    min_p: Array | None = None  # float32 [N], 0: all
    typical_p: Array | None = None  # float32 [N], 1: all
    repetition: Array | None = None  # float32 [N], 1: none
    frequency: Array | None = None  # float32 [N], 0: none
    presence: Array | None = None  # float32 [N], 0: none
    recent_indptr: Array | None = None  # int32 [N + 1]
    recent: Array | None = None  # int32, tokens that penalties count; -(s + 1) means token slot s
    allowed_rows: Array | None = None  # int32 [N], row of `allowed`, or -1: all tokens
    allowed: Array | None = None  # uint8 [rows, ceil(vocab / 8)], lowest bit first
    bias_indptr: Array | None = None  # int32 [N + 1]; None: there is none
    bias_tokens: Array | None = None  # int32, no token twice in a row
    bias_values: Array | None = None  # float32, added to the logits behind penalties
    alternatives: Array | None = None  # int32 [N], most probable tokens that are asked for, and the log-probability of
    # the chosen one with them; -1: not even that one. None: nobody asks
    matchers: Array | None = None  # int64 [N], 0: none
    matched: Array | None = None  # int32 [N]
    start_indptr: Array | None = None  # int32 [N + 1], byte offsets
    starts: Array | None = None  # uint8: a GrammarStart for each matcher of which `matched` is 0
    ended: Array | None = None  # int64, matchers that are not needed any more

    def zeros(self) -> SampleResult:
        tokens = _zeros(self.count(), np.int32)
        over = None if self.matchers is None else _zeros(self.count(), np.bool_)
        if self.alternatives is None:
            return SampleResult(tokens, over=over)
        none = _zeros(self.count() + 1, np.int32), _zeros(0, np.int32), _zeros(0, np.float32)
        return SampleResult(tokens, *none, over)


class Verify(Batch, frozen=True):
    """Checks drafts of tokens against what the model samples (speculative decoding).

    Each command has a row, an output of the model, for each draft token and one behind the last. A token is chosen at
    each row exactly as `Sample` chooses it, by the command's parameters and the row's `uniform`. The draft is accepted
    up to the first token that differs from the chosen one. A draft is not random, so this is exact rejection sampling:
    the accepted tokens and the chosen one behind them are what sampling step by step with the same `uniform` gives.
    """

    ragged: ClassVar[Layout] = {
        "indptr": ("embeds", "draft", "uniform"),
        "bias_indptr": ("bias_tokens", "bias_values"),
    }

    embeds: Array  # int32 [R]
    indptr: Array  # int32 [N + 1], ranges of rows, none empty
    draft: Array  # int32 [R], the draft token to be checked at the row; -1 at the last row of each command
    temperature: Array  # float32 [N], 0 is greedy
    uniform: Array  # float64 [R] in [0, 1)
    top_k: Array | None = None  # int32 [N], as in `Sample`
    top_p: Array | None = None  # float32 [N]
    min_p: Array | None = None  # float32 [N]
    typical_p: Array | None = None  # float32 [N]
    bias_indptr: Array | None = None  # int32 [N + 1], as in `Sample`
    bias_tokens: Array | None = None
    bias_values: Array | None = None

    def zeros(self) -> VerifyResult:
        return VerifyResult(*(_zeros(self.count(), np.int32) for _ in range(2)))


def _zeros(count: int, dtype: type[np.generic]) -> Array:
    return np.zeros(count, dtype)


def _kinds(kind: type[Batch]) -> Iterator[type[Batch]]:
    """The classes derived from it."""
    for one in kind.__subclasses__():
        yield one
        yield from _kinds(one)


BATCHES: Mapping[str, type[Batch]] = {call_name(kind): kind for kind in _kinds(Batch)}
"""The calls that workers run, by name."""

EXTENSIONS = ("forward_with_adapter", "state")
"""What a worker may be able to do with batches beside: run a `Forward` with `adapters`, or with slots of states."""

# ---- results: what batches have to tell -----------------------------------------------------------------------------


class ForwardWithScoresResult(Result, frozen=True):
    """The answer to `ForwardWithScores`: for each key of each sequence, in order, the weight that its queries together
    give to it, as the mean over heads and layers. Those of a sequence add up to the number of its queries that see a
    key."""

    ragged: ClassVar[Layout] = {"indptr": ("scores",)}

    indptr: Array  # int32 [N + 1]
    scores: Array  # float32


class SampleResult(Result, frozen=True):
    """The answer to `Sample`. Log-probabilities are those of the model itself, whatever the parameters are."""

    ragged: ClassVar[Layout] = {"score_indptr": ("scored", "logprobs")}

    tokens: Array  # int32 [N]
    score_indptr: Array | None = None  # int32 [N + 1]; None: the batch has no `alternatives`
    scored: Array | None = None  # int32, of each row that asked: the token, then the most probable ones in order
    logprobs: Array | None = None  # float32
    over: Array | None = None  # bool [N], where the batch has matchers: the row is the last one of its run


class VerifyResult(Result, frozen=True):
    """The answer to `Verify`."""

    accepted: Array  # int32 [N], leading rows where the chosen token is the draft
    tokens: Array  # int32 [N], the token chosen at the first row where it is not, or at the last row


if TYPE_CHECKING:
    AnyBatch = Batch
    AnyResult = Result
else:  # what msgspec decodes must be named
    AnyBatch = functools.reduce(operator.or_, BATCHES.values())
    AnyResult = functools.reduce(operator.or_, Result.__subclasses__())
