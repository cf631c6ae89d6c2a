"""A model without weights that keeps the wire protocol to the letter: a test double that ships.

Theory. An input embed holds a hash of its token. A KV slot holds the input and its position, and a key is a hash of
both; an output embed holds a digest of the visible keys *in their order*. Next-token scores are a hash of the digest.
So tokens depend on exactly what they depend on in a real model, and a wrong slot, page, order, position or mask changes
them. Unlike a real model it also refuses what the protocol forbids: a slot or embed that is read before it was filled,
or written twice in one batch, and keys that do not end with the sequence's own tokens.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from pie_inference import protocol as wire
from pie_inference.grammars.rows import Constraints, Fault
from pie_inference.protocol import Forward, GetEmbedding, GetEmbeddingResult
from pie_inference.testing import byte_tokenizer
from pie_inference.testing.small_vision import VISION, TileRunner

from .fake_adapters import FakeAdapters
from .fake_sampling import bias, choose, forbid, penalize, scored, softmax
from .filled_array import FilledArray

Hashes = NDArray[np.uint64]
Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

SCORE_RANGE, HIDDEN_SIZE = 8.0, 8
FAULTS = (ValueError, IndexError)
"""What a command raises that cannot run."""

DESCRIPTION = wire.ModelDescription(
    name="fake",
    architecture="FakeModel",
    calls=(*wire.BATCHES, *wire.EXTENSIONS),
    dtype="uint64",
    device="cpu",
    vocab_size=byte_tokenizer.VOCAB_SIZE,
    hidden_size=HIDDEN_SIZE,
    max_context=4096,
    page_size=16,
    num_pages=1024,
    num_host_pages=64,
    num_embeds=4096,
    num_token_slots=4096,
    max_batch_tokens=512,
    max_batch_rows=256,
    max_dist=byte_tokenizer.VOCAB_SIZE,
    max_swap_pages=16,
    stop_tokens=(byte_tokenizer.END,),
    tokenizer=byte_tokenizer.tokenizer_json(),
    tokenizer_config=byte_tokenizer.tokenizer_config(),
    page_bytes=8 * 16,
    weight_bytes=0,
    vision=VISION,
)
"""What a fake model says of itself unless it is told otherwise."""


def mix(values: wire.Array) -> Hashes:
    """The finalizer of splitmix64: a bijection that spreads every input bit."""
    z = values.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def hash_key(inputs: Hashes, positions: wire.Array) -> Hashes:
    """The key of an input. Mixing positions twice keeps token n at position n from cancelling out."""
    return mix(inputs ^ mix(mix(positions)))


def _describe(name: str, **fields: Any) -> wire.ModelDescription:
    about = msgspec.structs.replace(DESCRIPTION, name=name, **fields)
    calls = tuple(call for call in about.calls if about.vision or call != wire.call_name(wire.EmbedImg))
    return msgspec.structs.replace(about, calls=calls, page_bytes=8 * about.page_size)


def pooled(batch: GetEmbedding, states: NDArray[np.float64]) -> GetEmbeddingResult:
    """The answer to a batch, from the states [R, hidden_size] at its embeds. Raises ValueError."""
    if (np.diff(batch.indptr) < 1).any() or not 1 <= batch.dimensions.min() <= batch.dimensions.max() <= states.shape[
        1
    ]:
        raise ValueError("a command names no embed, or wrong dimensions")
    vectors = []
    for n, (first, end) in enumerate(pairwise(batch.indptr.tolist())):
        vector = (states[first:end].mean(0) if batch.mean[n] else states[end - 1])[: batch.dimensions[n]]
        vectors.append(vector / np.linalg.norm(vector) if batch.normalize[n] else vector)
    ends = np.cumsum([0, *map(len, vectors)]).astype(np.int32)
    return GetEmbeddingResult(ends, np.concatenate([np.zeros(0), *vectors]).astype(np.float32))


def explicit_mask(batch: Forward, n: int, queries: int, keys: int) -> NDArray[np.bool_] | None:
    """The boolean mask [queries, keys] of sequence n, if it has one."""
    if batch.mask_indptr is None or batch.mask_bits is None or batch.mask_indptr[n] == batch.mask_indptr[n + 1]:
        return None
    bits = batch.mask_bits[batch.mask_indptr[n] : batch.mask_indptr[n + 1]].astype(np.uint8)
    if len(bits) != -(-queries * keys // 8):
        raise ValueError(f"a mask has {len(bits)} bytes for {queries} x {keys} bits")
    return np.unpackbits(bits, count=queries * keys, bitorder="little").reshape(queries, keys).astype(np.bool_)


def range_mask(batch: Forward, n: int, queries: int, keys: int) -> NDArray[np.bool_]:
    """The mask [queries, keys] of sequence n, from the ranges that its queries see."""
    assert batch.range_indptr is not None
    assert batch.range_rows is not None
    assert batch.range_begins is not None
    assert batch.range_ends is not None
    mask = np.zeros((queries, keys), np.bool_)
    for place in range(batch.range_indptr[n], batch.range_indptr[n + 1]):
        begin, end = batch.range_begins[place], batch.range_ends[place]
        if not 0 <= begin <= end <= keys:
            raise ValueError(f"a query sees keys {begin} to {end} of {keys}")
        mask[batch.range_rows[place], begin:end] = True
    return mask


class FakeModel:
    """Runs waves; implements `ModelRunner`. Tokens are bytes (`byte_tokenizer`); `stop_tokens` is its end token."""

    def __init__(self, name: str = "fake", **fields: Any) -> None:
        """`fields`: those of its description that are not as in `DESCRIPTION`."""
        self._description = about = _describe(name, **fields)
        slots, host_slots = about.page_size * about.num_pages, about.page_size * about.num_host_pages
        self._slots = FilledArray("KV slot", slots)
        self._positions = np.zeros(slots, np.int64)  # of the keys in the slots
        self._host_slots = FilledArray("host slot", host_slots)
        self._host_positions = np.zeros(host_slots, np.int64)
        self._embeds = FilledArray("embed", about.num_embeds)
        self._tokens = FilledArray("token slot", about.num_token_slots)
        self._tiles = TileRunner(about.vision or VISION)
        self._constraints = Constraints(about.tokenizer, about.vocab_size, about.stop_tokens)
        self._faults: list[tuple[int, Fault]] = []
        self._adapters = FakeAdapters()
        self._powers = np.multiply.accumulate(np.full(slots, 0x9E3779B97F4A7C15, np.uint64))
        self._handlers: dict[type[wire.Batch], Callable[[Any], wire.Result | None]] = {
            kind: getattr(self, f"_{call}") for call, kind in wire.BATCHES.items()
        }

    def describe(self) -> tuple[wire.ModelDescription, ...]:
        return (self._description,)

    def run(self, wave: wire.RunWave) -> wire.WaveDone:
        started = time.perf_counter()
        failures: list[wire.Failure] = []
        results = tuple(
            self._run_batch(wave.model, number, batch, failures) for number, batch in enumerate(wave.batches)
        )
        return wire.WaveDone(wave.wave, results, time.perf_counter() - started, tuple(failures))

    def load_adapter(self, message: wire.LoadAdapter) -> wire.AdapterLoaded:
        return self._adapters.load(message)

    def drop_adapter(self, message: wire.DropAdapter) -> None:
        self._adapters.drop(message.number)

    def _run_batch(
        self, model: str, number: int, batch: wire.Batch, failures: list[wire.Failure]
    ) -> wire.Result | None:
        """Runs a batch as a worker does: what fails is taken apart. If no command fails alone, all fail: they clash."""
        name = wire.call_name(type(batch))
        try:
            result = self._handle(model, batch)
        except FAULTS as error:
            message = f"{name}: {error}"
        else:
            failures += self._take_faults(number, 0, name)
            return result
        results, before = [], len(failures)
        for command in range(batch.count()):
            try:
                results.append(self._handle(model, batch.only(command)))
                failures += self._take_faults(number, command, name)
            except FAULTS as error:
                results.append(None)
                failures.append(wire.Failure(number, command, f"{name}: {error}"))
        if len(failures) > before:
            return wire.join_results(batch, results)
        failures += [wire.Failure(number, command, message) for command in range(batch.count())]
        return None

    def _take_faults(self, number: int, first: int, name: str) -> list[wire.Failure]:
        """The failures of rows that failed without the others."""
        faults, self._faults = self._faults, []
        return [wire.Failure(number, first + row, f"{name}: {fault.message}", fault.busy) for row, fault in faults]

    def _handle(self, model: str, batch: wire.Batch) -> wire.Result | None:
        if model != self._description.name:
            raise ValueError(f"there is no model {model!r} here, only {self._description.name!r}")
        return self._handlers[type(batch)](batch)

    def _swap_out(self, batch: wire.SwapOut) -> None:
        self._swap(self._slots, batch.pages, self._host_slots, batch.host_pages)
        self._host_positions[self._page_slots(batch.host_pages)] = self._positions[self._page_slots(batch.pages)]

    def _swap_in(self, batch: wire.SwapIn) -> None:
        self._swap(self._host_slots, batch.host_pages, self._slots, batch.pages)
        self._positions[self._page_slots(batch.pages)] = self._host_positions[self._page_slots(batch.host_pages)]

    def _swap(self, source: FilledArray, sources: wire.Array, target: FilledArray, targets: wire.Array) -> None:
        """Copies whole pages with what is filled of them."""
        if len(sources) != len(targets) or len(targets) > self._description.max_swap_pages:
            raise ValueError(f"{len(sources)} and {len(targets)} pages are to be swapped at a time")
        source_slots, target_slots = self._page_slots(sources), self._page_slots(targets)
        filled = source.filled_among(source_slots)
        if not filled.reshape(len(sources), -1).any(1).all():
            raise ValueError(f"a page without a filled {source.what} is swapped")
        target.write(target_slots, source.values[source_slots])
        target.filled[target_slots] = filled

    def _page_slots(self, pages: wire.Array) -> Integers:
        size = self._description.page_size
        return (pages.astype(np.int64)[:, None] * size + np.arange(size)).reshape(-1)

    def _copy_kvpage(self, batch: wire.CopyKvpage) -> None:
        self._slots.write(batch.target, self._slots.read(batch.source))
        self._positions[batch.target] = self._positions[batch.source]

    def _shift_kvpage(self, batch: wire.ShiftKvpage) -> None:
        self._slots.read(batch.slots)
        if batch.positions.min(initial=0) < 0:
            raise ValueError("a position is negative")
        self._positions[batch.slots] = batch.positions

    def _copy_emb(self, batch: wire.CopyEmb) -> None:
        self._embeds.write(batch.target, self._embeds.read(batch.source))

    def _embed_txt(self, batch: wire.EmbedTxt) -> None:
        self._embeds.write(batch.embeds, mix(self._resolve(batch.tokens)))

    def _embed_img(self, batch: wire.EmbedImg) -> None:
        self._embeds.write(batch.embeds, self._tiles.run(batch))

    def _resolve(self, tokens: wire.Array) -> Integers:
        """Replaces token slots by the tokens in them."""
        resolved = tokens.astype(np.int64)
        references = resolved < 0
        resolved[references] = self._tokens.read(-resolved[references] - 1)
        self._check_tokens(resolved)
        return resolved

    def _check_tokens(self, tokens: wire.Array) -> None:
        if len(tokens) and not (tokens.min() >= 0 and tokens.max() < self._description.vocab_size):
            raise ValueError(f"a token of {tokens} is outside the vocabulary")

    def _forward(self, batch: wire.Forward) -> None:
        if batch.q_positions.min(initial=0) < 0:
            raise ValueError("a position is negative")
        if batch.kv_begins.min(initial=0) < 0 or batch.kv_ends.max(initial=0) > self._description.page_size:
            raise ValueError("a run of keys leaves its page")
        self._slots.write(batch.q_slots, self._embeds.read(batch.q_embeds) ^ self._adapters.changes(batch))
        self._positions[batch.q_slots] = batch.q_positions
        outputs = [self._attend(batch, n) for n in range(len(batch.q_indptr) - 1)]
        self._embeds.write(batch.out_embeds, np.concatenate([np.zeros(0, np.uint64), *outputs])[batch.out_rows])

    def _forward_with_scores(self, batch: wire.ForwardWithScores) -> wire.ForwardWithScoresResult:
        """Each query gives the same to all keys that it sees."""
        self._forward(batch)
        scores = []
        for n, count in enumerate(np.diff(batch.q_indptr).tolist()):
            slots = self._key_slots(batch, n)
            mask = self._mask(batch, n, count, slots)
            seen = np.tri(count, len(slots), len(slots) - count) if mask is None else mask
            scores.append((seen / seen.sum(1, keepdims=True)).sum(0))
        ends = np.cumsum([0, *map(len, scores)]).astype(np.int32)
        return wire.ForwardWithScoresResult(ends, np.concatenate([np.zeros(0), *scores]).astype(np.float32))

    def _attend(self, batch: wire.Forward, n: int) -> Hashes:
        """Digests of the visible keys for each query of sequence n."""
        queries = slice(batch.q_indptr[n], batch.q_indptr[n + 1])
        count = queries.stop - queries.start
        slots = self._key_slots(batch, n)
        if not np.array_equal(slots[len(slots) - count :], batch.q_slots[queries]):
            raise ValueError("the keys of a sequence do not end with its own tokens")
        keys = hash_key(self._slots.read(slots), self._positions[slots])
        mask = self._mask(batch, n, count, slots)
        if mask is None:
            return mix(np.cumsum(keys * self._powers[: len(keys)])[len(keys) - count :])
        return mix(np.array([np.sum(keys[row] * self._powers[: row.sum()]) for row in mask], np.uint64))

    def _mask(self, batch: wire.Forward, n: int, count: int, slots: Integers) -> NDArray[np.bool_] | None:
        """The keys that each query sees [queries, keys], where that is not the causal rule."""
        if batch.position_keys is not None and batch.position_keys[n]:
            return self._position_mask(batch, n, slots)
        if batch.masked is not None and batch.masked[n]:
            return range_mask(batch, n, count, len(slots))
        return explicit_mask(batch, n, count, len(slots))

    def _position_mask(self, batch: wire.Forward, n: int, slots: Integers) -> NDArray[np.bool_]:
        """The keys that each query sees [queries, keys], if it sees those in front by position."""
        queries = batch.q_positions[batch.q_indptr[n] : batch.q_indptr[n + 1]]
        by_position = int(batch.position_keys[n])  # type: ignore[index]
        if not 0 <= by_position <= len(slots) - len(queries):
            raise ValueError(f"{by_position} keys of {len(slots)} are seen by position")
        mask = np.tri(len(queries), len(slots), len(slots) - len(queries), dtype=np.bool_)
        mask[:, :by_position] = self._positions[slots[:by_position]] < queries[:, None]
        return mask

    def _key_slots(self, batch: wire.Forward, n: int) -> Integers:
        runs = range(batch.kv_indptr[n], batch.kv_indptr[n + 1])
        pages = batch.kv_pages.astype(np.int64) * self._description.page_size
        slots = [np.arange(pages[r] + batch.kv_begins[r], pages[r] + batch.kv_ends[r]) for r in runs]
        return np.concatenate([np.zeros(0, np.int64), *slots])

    def _scores(self, embeds: wire.Array) -> Floats:
        """Next-token scores, float64 [N, vocab_size]."""
        hashes = mix(self._embeds.read(embeds)[:, None] ^ mix(np.arange(self._description.vocab_size))[None, :])
        return (hashes >> np.uint64(11)).astype(np.float64) * (SCORE_RANGE / 2**53)

    def _sample(self, batch: wire.Sample) -> wire.SampleResult:
        scores = self._scores(batch.embeds)
        own = None if batch.alternatives is None else scores.copy()
        for n, row in enumerate(scores):
            self._penalize(batch, n, row)
            bias(batch, n, row)
            forbid(batch, n, row)
        step = None if batch.matchers is None else self._constraints.step(batch)
        if step is not None:
            allowed = np.unpackbits(step.allowed, axis=1, count=scores.shape[1], bitorder="little")
            scores[step.rows] = np.where(allowed, scores[step.rows], -np.inf)
        tokens = np.array([choose(batch, n, float(batch.uniform[n]), row) for n, row in enumerate(scores)], np.int32)
        self._tokens.write(batch.token_slots, tokens)
        result = wire.SampleResult(tokens) if own is None else scored(batch, tokens, own)
        if step is None:
            return result
        step.sampled(tokens.tolist)
        self._faults += step.faults.items()
        return msgspec.structs.replace(result, over=step.over(len(tokens)))

    def _verify(self, batch: wire.Verify) -> wire.VerifyResult:
        ends = batch.indptr[1:]
        if (np.diff(batch.indptr) < 1).any() or (batch.draft[ends - 1] != -1).any():
            raise ValueError("the last row of a draft has no -1")
        self._check_tokens(np.delete(batch.draft, ends - 1))
        scores = self._scores(batch.embeds)
        accepted, tokens = [], []
        for n, (first, end) in enumerate(pairwise(batch.indptr.tolist())):
            for own in scores[first:end]:
                bias(batch, n, own)
            row = first
            while (token := choose(batch, n, float(batch.uniform[row]), scores[row])) == batch.draft[row]:
                row += 1
            assert row < end
            accepted.append(row - first)
            tokens.append(token)
        return wire.VerifyResult(np.array(accepted, np.int32), np.array(tokens, np.int32))

    def _penalize(self, batch: wire.Sample, n: int, scores: Floats) -> None:
        if batch.recent is not None and batch.recent_indptr is not None:
            penalize(batch, n, self._resolve(batch.recent[batch.recent_indptr[n] : batch.recent_indptr[n + 1]]), scores)

    def _get_next_dist(self, batch: wire.GetNextDist) -> wire.GetNextDistResult:
        if batch.k.min(initial=1) < 1 or batch.k.max(initial=1) > self._description.max_dist:
            raise ValueError(f"k must be 1 to {self._description.max_dist}")
        rows = wire.embeds_of_each(batch)
        k, temperatures = batch.k.repeat(rows), batch.temperature.repeat(rows)
        probabilities = [softmax(row / t) for row, t in zip(self._scores(batch.embeds), temperatures, strict=True)]
        orders = [np.argsort(-row, kind="stable")[:most] for row, most in zip(probabilities, k, strict=True)]
        kept = [row[order] for row, order in zip(probabilities, orders, strict=True)]
        ends = np.cumsum([0, *map(len, kept)]).astype(np.int32)
        return wire.GetNextDistResult(
            indptr=ends if batch.embed_indptr is None else ends[batch.embed_indptr],
            tokens=np.concatenate([np.zeros(0, np.int32), *orders]).astype(np.int32),
            probabilities=np.concatenate([np.zeros(0), *kept]).astype(np.float32),
            rest=np.array([max(0.0, 1 - row.sum()) for row in kept], np.float32),
            rest_indptr=batch.embed_indptr,
        )

    def _get_embedding(self, batch: wire.GetEmbedding) -> wire.GetEmbeddingResult:
        return pooled(batch, self._scores(batch.embeds)[:, :HIDDEN_SIZE] - SCORE_RANGE / 2)

    def _get_logprobs(self, batch: wire.GetLogprobs) -> wire.GetLogprobsResult:
        self._check_tokens(batch.tokens)
        logprobs = np.log(np.array([softmax(row) for row in self._scores(batch.embeds)]))
        rows = np.arange(len(batch.embeds)).repeat(wire.tokens_of_each(batch))
        return wire.GetLogprobsResult(logprobs[rows, batch.tokens].astype(np.float32))
