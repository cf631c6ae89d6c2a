"""A model that answers at once and says how long a GPU would have taken: the inside of a paced worker.

It keeps no keys: an embed holds a hash of one token and its position, and the next token is a hash of that. So an
answer depends only on the last input of its forward, whatever else is in the batch or in the cache; the same program
gives the same tokens, however its commands were batched. Sampling parameters change nothing, except that a token which
a mask forbids is never chosen. All tokens that are chosen are printable ASCII, one character each. A call of a wave
costs a few array operations, far below the least step of a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from .. import protocol as wire
from ..grammars.rows import Constraints, Fault, MatcherStep
from ..options import WorkerOptions
from ..options.pace import Pace
from . import byte_tokenizer
from .small_vision import VISION, TileRunner

Hashes = NDArray[np.uint64]

DEFAULTS = {"max_context": 1 << 20, "pages": 1 << 16, "embeds": 1 << 16}
"""Sizes that an operator has left to the worker: more than any benchmark needs, as they take next to no memory."""
MOST_SWAP_PAGES = 16
VOCAB = byte_tokenizer.VOCAB_SIZE
FIRST, CHARACTERS = ord(" "), 95
"""The tokens that are chosen: the printable characters of ASCII."""
FAULTS = (ValueError, IndexError)
"""What a batch raises that breaks the protocol."""

RANKED = ((np.arange(FIRST, FIRST + CHARACTERS)[:, None] + np.arange(VOCAB)) % VOCAB).astype(np.int32)
"""All tokens behind each that can be chosen, the most probable first."""
WEIGHTS = (np.arange(VOCAB, 0, -1) / (VOCAB * (VOCAB + 1) / 2)).astype(np.float32)
"""Their probabilities."""


def spread(values: wire.Array) -> Hashes:
    """A hash of each number: the first half of the finalizer of splitmix64."""
    z = values.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    return z ^ (z >> np.uint64(27))


def _describe(name: str, options: WorkerOptions) -> wire.ModelDescription:
    sizes = {key: size if (size := getattr(options, key)) is not None else DEFAULTS[key] for key in DEFAULTS}
    return wire.ModelDescription(
        name=name,
        architecture="PacedModel",
        calls=(*wire.BATCHES, *wire.EXTENSIONS),
        dtype="none",
        device="paced",
        vocab_size=VOCAB,
        hidden_size=1,
        max_context=sizes["max_context"],
        page_size=options.page_size,
        num_pages=sizes["pages"],
        num_host_pages=options.host_pages,
        num_embeds=sizes["embeds"],
        num_token_slots=options.token_slots,
        max_batch_tokens=options.max_batch_tokens,
        max_batch_rows=options.max_batch_rows,
        max_dist=VOCAB,
        max_swap_pages=min(MOST_SWAP_PAGES, options.host_pages),
        stop_tokens=(byte_tokenizer.END,),
        tokenizer=byte_tokenizer.tokenizer_json(),
        tokenizer_config=byte_tokenizer.tokenizer_config(),
        page_bytes=0,
        weight_bytes=0,
        vision=VISION,
    )


class PacedModel:
    """Runs waves; `options` says how large its pools and batches are."""

    def __init__(self, name: str, pace: Pace, options: WorkerOptions) -> None:
        self._pace = pace
        self._description = _describe(name, options)
        self._constraints = Constraints(self._description.tokenizer, VOCAB, (byte_tokenizer.END,))
        self._faults: list[tuple[int, Fault]] = []
        self._embeds = np.zeros(self._description.num_embeds, np.uint64)
        self._tokens = np.zeros(options.token_slots, np.int32)
        self._tiles = TileRunner()
        self._handlers: dict[type[wire.Batch], Callable[[Any], wire.Result | None]] = {
            wire.SwapOut: _nothing,
            wire.SwapIn: _nothing,
            wire.CopyKvpage: _nothing,
            wire.ShiftKvpage: _nothing,
            wire.CopyEmb: self._copy_emb,
            wire.EmbedTxt: self._embed_txt,
            wire.EmbedImg: self._embed_img,
            wire.Forward: self._forward,
            wire.ForwardWithScores: self._forward_with_scores,
            wire.Sample: self._sample,
            wire.Verify: self._verify,
            wire.GetEmbedding: _get_embedding,
            wire.GetNextDist: self._get_next_dist,
            wire.GetLogprobs: self._get_logprobs,
        }

    def describe(self) -> tuple[wire.ModelDescription, ...]:
        return (self._description,)

    def run(self, wave: wire.RunWave) -> wire.WaveDone:
        """The answer to a wave. `seconds` is the time that it is to take."""
        failures: list[wire.Failure] = []
        results = tuple(self._run_batch(number, batch, failures) for number, batch in enumerate(wave.batches))
        tokens = sum(len(batch.q_embeds) for batch in wave.batches if isinstance(batch, wire.Forward))
        return wire.WaveDone(wave.wave, results, self._pace.seconds(tokens), tuple(failures))

    def load_adapter(self, message: wire.LoadAdapter) -> wire.AdapterLoaded:
        """Adapters change nothing; whatever is named is there."""
        return wire.AdapterLoaded(message.number)

    def drop_adapter(self, message: wire.DropAdapter) -> None:
        """There is nothing to forget."""

    def forget(self) -> None:
        """Matchers are all that waves have left."""
        self._constraints.clear()

    def _run_batch(self, number: int, batch: wire.Batch, failures: list[wire.Failure]) -> wire.Result | None:
        name = wire.call_name(type(batch))
        try:
            handler = self._handlers.get(type(batch))
            if handler is None:
                raise ValueError("the stand-in for a model has no answer to this call")
            result = handler(batch)
            faults, self._faults = self._faults, []
            failures += [wire.Failure(number, row, f"{name}: {fault.message}", fault.busy) for row, fault in faults]
            return result
        except FAULTS as error:
            message = f"{name}: {error}"
            failures += [wire.Failure(number, command, message) for command in range(batch.count())]
            return None

    def _embed_txt(self, batch: wire.EmbedTxt) -> None:
        references = batch.tokens < 0
        self._embeds[batch.embeds] = np.where(references, self._tokens[-1 - batch.tokens * references], batch.tokens)

    def _embed_img(self, batch: wire.EmbedImg) -> None:
        self._embeds[batch.embeds] = self._tiles.run(batch)

    def _copy_emb(self, batch: wire.CopyEmb) -> None:
        self._embeds[batch.target] = self._embeds[batch.source]

    def _forward(self, batch: wire.Forward) -> None:
        inputs, positions = self._embeds[batch.q_embeds[batch.out_rows]], batch.q_positions[batch.out_rows]
        self._embeds[batch.out_embeds] = spread(inputs + spread(positions))

    def _forward_with_scores(self, batch: wire.ForwardWithScores) -> wire.ForwardWithScoresResult:
        """All tokens get the same attention."""
        self._forward(batch)
        ends = np.concatenate(([0], np.cumsum(batch.kv_ends - batch.kv_begins)))[batch.kv_indptr].astype(np.int32)
        counts, queries = np.diff(ends), np.diff(batch.q_indptr)
        return wire.ForwardWithScoresResult(ends, np.repeat(queries / counts, counts).astype(np.float32))

    def _choose(self, embeds: wire.Array) -> NDArray[np.int32]:
        """The most probable token at each embed."""
        chosen: NDArray[np.int32] = (self._embeds[embeds] % np.uint64(CHARACTERS)).astype(np.int32) + np.int32(FIRST)
        return chosen

    def _sample(self, batch: wire.Sample) -> wire.SampleResult:
        tokens = self._choose(batch.embeds)
        if batch.allowed is not None and batch.allowed_rows is not None:
            for row in np.flatnonzero(batch.allowed_rows >= 0):
                tokens[row] = _allowed(int(tokens[row]), batch.allowed[batch.allowed_rows[row]])
        step = None if batch.matchers is None else self._constraints.step(batch)
        if step is not None:
            for row, allowed in zip(step.rows, step.allowed, strict=True):
                tokens[row] = _allowed(int(tokens[row]), allowed)
        self._tokens[batch.token_slots] = tokens
        result = wire.SampleResult(tokens) if batch.alternatives is None else _scored(batch, tokens)
        return result if step is None else self._follow(step, result)

    def _follow(self, step: MatcherStep, result: wire.SampleResult) -> wire.SampleResult:
        step.sampled(result.tokens.tolist)
        self._faults += step.faults.items()
        return msgspec.structs.replace(result, over=step.over(len(result.tokens)))

    def _verify(self, batch: wire.Verify) -> wire.VerifyResult:
        tokens = self._choose(batch.embeds)
        differs = tokens != batch.draft  # as does the last row of each command, where the draft is -1
        stops = [first + int(differs[first:end].argmax()) for first, end in pairwise(batch.indptr.tolist())]
        accepted = np.array(stops, np.int32) - batch.indptr[:-1]
        return wire.VerifyResult(accepted.astype(np.int32), tokens[stops])

    def _get_next_dist(self, batch: wire.GetNextDist) -> wire.GetNextDistResult:
        chosen, lengths = self._choose(batch.embeds), batch.k.astype(np.int64).repeat(wire.embeds_of_each(batch))
        indptr = np.concatenate(([0], lengths.cumsum()))
        ranks = np.arange(indptr[-1]) - indptr[:-1].repeat(lengths)
        return wire.GetNextDistResult(
            indptr=(indptr if batch.embed_indptr is None else indptr[batch.embed_indptr]).astype(np.int32),
            tokens=RANKED[(chosen - FIRST).repeat(lengths), ranks],
            probabilities=WEIGHTS[ranks],
            rest=np.maximum(0, 1 - WEIGHTS.cumsum()[lengths - 1]),
            rest_indptr=batch.embed_indptr,
        )

    def _get_logprobs(self, batch: wire.GetLogprobs) -> wire.GetLogprobsResult:
        chosen = self._choose(batch.embeds).repeat(wire.tokens_of_each(batch))
        return wire.GetLogprobsResult(np.log(WEIGHTS[(batch.tokens - chosen) % VOCAB]))


def _nothing(batch: wire.Batch) -> None:
    """Keys are not kept, so they need not be moved."""


def _get_embedding(batch: wire.GetEmbedding) -> wire.GetEmbeddingResult:
    """Its states have one number, which is 1."""
    return wire.GetEmbeddingResult(np.arange(len(batch.mean) + 1, dtype=np.int32), np.ones(len(batch.mean), np.float32))


def _scored(batch: wire.Sample, tokens: NDArray[np.int32]) -> wire.SampleResult:
    """Tokens with log-probabilities where they are asked for, as if each were the most probable one of its row."""
    assert batch.alternatives is not None
    lengths = np.maximum(batch.alternatives.astype(np.int64) + 1, 0)
    ends = np.concatenate(([0], lengths.cumsum()))
    places = np.arange(ends[-1]) - ends[:-1].repeat(lengths)
    ranks = np.maximum(places - 1, 0)
    logprobs = np.log(WEIGHTS[ranks])
    return wire.SampleResult(tokens, ends.astype(np.int32), RANKED[(tokens - FIRST).repeat(lengths), ranks], logprobs)


def _allowed(token: int, mask: wire.Array) -> int:
    """The first token from `token` on, and after the last one from 0 on, that the mask allows. Raises ValueError."""
    allowed = np.flatnonzero(np.unpackbits(mask.astype(np.uint8), count=VOCAB, bitorder="little"))
    if not len(allowed):
        raise ValueError("the mask allows no token")
    return int(allowed[np.searchsorted(allowed, token) % len(allowed)])
