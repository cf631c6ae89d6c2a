"""Builds batches of the protocol, as a naive control layer with one page list for each sequence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import msgspec
import numpy as np

from pie_inference.protocol import (
    Batch,
    CopyKvpage,
    EmbedImg,
    EmbedTxt,
    Forward,
    GetLogprobs,
    GetLogprobsResult,
    GetNextDist,
    Result,
    RunWave,
    Sample,
    SampleResult,
    Vision,
    WaveDone,
)

Run = tuple[int, int, int]
R = TypeVar("R", bound=Result)


def ints(values: Sequence[int] | Sequence[Run] | np.ndarray) -> np.ndarray:
    return np.asarray(values, np.int32)


def indptr(lengths: Sequence[int]) -> np.ndarray:
    return np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)


@dataclass
class Keys:
    """The context of one sequence: slots in order, and the position of the next token."""

    slots: list[int] = field(default_factory=list)
    position: int = 0

    def fork(self) -> Keys:
        return replace(self, slots=list(self.slots))

    def runs(self, page_size: int) -> list[Run]:
        """The maximal runs of slots, as (page, begin, end)."""
        return runs_of(self.slots, page_size)


@dataclass
class Extend:
    """Appends tokens to a sequence, and asks for the outputs of all of them."""

    keys: Keys
    tokens: Sequence[int]
    mask: np.ndarray | None = None  # bool [len(tokens), keys], new keys included


class Driver:
    """Runs batches with `run_wave`. Embeds 0, 1, ... are for inputs, those from `outputs` on for outputs."""

    def __init__(self, run_wave: Callable[[RunWave], WaveDone], model: str, page_size: int = 16) -> None:
        self.run_wave = run_wave
        self.model = model
        self.page_size = page_size
        self.outputs = 512
        self._next_page = 1  # page 0 stays empty, so that a wrong zero is noticed
        self._waves = 0

    def run(self, *batches: Batch) -> tuple[Result | None, ...]:
        self._waves += 1
        done = self.run_wave(RunWave(self._waves, self.model, batches))
        assert not done.failures, done.failures
        return done.results

    def ask(self, kind: type[R], *batches: Batch) -> R:
        """Runs the batches as one wave; returns the result of the last, which is of type `kind`."""
        result = self.run(*batches)[-1]
        assert isinstance(result, kind)
        return result

    def add_slots(self, keys: Keys, count: int) -> list[int]:
        """Appends slots: first the rest of a partly filled last page, then new pages out of order."""
        new: list[int] = []
        for _ in range(count):
            last = keys.slots[-1] if keys.slots else -1
            if last >= 0 and (last + 1) % self.page_size:
                slot = last + 1
            else:
                slot = self._next_page * self.page_size
                self._next_page += 1
            keys.slots.append(slot)
            new.append(slot)
        return new

    def forward_batch(self, parts: Sequence[Extend]) -> tuple[EmbedTxt, Forward]:
        slots = [slot for part in parts for slot in self.add_slots(part.keys, len(part.tokens))]
        positions = [part.keys.position + j for part in parts for j in range(len(part.tokens))]
        for part in parts:
            part.keys.position += len(part.tokens)
        runs = [part.keys.runs(self.page_size) for part in parts]
        flat = np.array([run for part in runs for run in part], np.int32).reshape(-1, 3)
        rows = ints(range(len(slots)))
        masks = [np.packbits(part.mask, bitorder="little") if part.mask is not None else None for part in parts]
        explicit = any(mask is not None for mask in masks)
        packed = [mask if mask is not None else np.zeros(0, np.uint8) for mask in masks]
        forward = Forward(
            q_indptr=indptr([len(part.tokens) for part in parts]),
            q_embeds=rows,
            q_positions=ints(positions),
            q_slots=ints(slots),
            kv_indptr=indptr([len(part) for part in runs]),
            kv_pages=flat[:, 0].copy(),
            kv_begins=flat[:, 1].copy(),
            kv_ends=flat[:, 2].copy(),
            dense=np.array([is_dense(part, self.page_size) for part in runs]),
            out_rows=rows,
            out_embeds=rows + self.outputs,
            mask_indptr=np.concatenate(([0], np.cumsum([len(mask) for mask in packed]))) if explicit else None,
            mask_bits=np.concatenate(packed) if explicit else None,
        )
        tokens = [token for part in parts for token in part.tokens]
        return EmbedTxt(rows, ints(tokens), forward.q_indptr), forward

    def logprobs(self, *parts: Extend, vocab_size: int, adapters: Sequence[int] | None = None) -> list[np.ndarray]:
        """Runs all parts as one Forward, each with its adapter (-1: none) if these are given; returns log-probabilities
        float32 [len(tokens), vocab_size] for each part."""
        count = sum(len(part.tokens) for part in parts)
        rows = ints(range(count))
        score = GetLogprobs(rows + self.outputs, indptr([vocab_size] * count), ints(list(range(vocab_size)) * count))
        embed, forward = self.forward_batch(parts)
        if adapters is not None:
            forward = msgspec.structs.replace(forward, adapters=ints(adapters))
        result = self.ask(GetLogprobsResult, embed, forward, score)
        table = result.logprobs.reshape(count, vocab_size)
        return np.split(table, np.cumsum([len(part.tokens) for part in parts])[:-1])

    def generate(self, keys: Keys, prompt: Sequence[int], count: int) -> list[int]:
        """Generates `count` greedy tokens behind a prompt."""
        tokens: list[int] = []
        pending: Sequence[int] = prompt
        for _ in range(count):
            embed, forward = self.forward_batch([Extend(keys, pending)])
            sample = sample_batch(ints([self.outputs + len(pending) - 1]))
            result = self.ask(SampleResult, embed, forward, sample)
            pending = [int(result.tokens[0])]
            tokens += pending
        return tokens


def runs_of(slots: Sequence[int], page_size: int) -> list[Run]:
    """The maximal runs of slots, as (page, begin, end)."""
    runs: list[Run] = []
    for slot in slots:
        page, offset = divmod(slot, page_size)
        if runs and runs[-1][0] == page and runs[-1][2] == offset:
            runs[-1] = (page, runs[-1][1], offset + 1)
        else:
            runs.append((page, offset, offset + 1))
    return runs


def is_dense(runs: Sequence[Run], page_size: int) -> bool:
    return all(begin == 0 for _, begin, _ in runs) and all(end == page_size for _, _, end in runs[:-1])


def embed_batch(embeds: np.ndarray, tokens: np.ndarray, lengths: Sequence[int] | None = None) -> EmbedTxt:
    """A batch of one command, unless `lengths` divides the arrays into several."""
    return EmbedTxt(embeds, tokens, indptr([len(embeds)] if lengths is None else lengths))


def image_batch(
    vision: Vision,
    tiles: np.ndarray,
    embeds: np.ndarray,
    rows: Sequence[int],
    firsts: Sequence[int] = (),
    lengths: Sequence[int] = (),
) -> EmbedImg:
    """Command n fills `lengths[n]` of the embeds from tile `rows[n]`, which goes through all layers; left out: all
    vectors of each."""
    count = len(rows)
    return EmbedImg(
        rows=ints(rows),
        begins=ints([0] * count),
        ends=ints([vision.layers] * count),
        slots=ints(range(count)),
        firsts=ints(firsts or [0] * count),
        embeds=embeds,
        indptr=indptr(lengths or [vision.tile_embeds] * count),
        tiles=tiles,
    )


def in_two(batch: EmbedImg, layer: int) -> tuple[EmbedImg, EmbedImg]:
    """Splits a batch in two, up to a layer and from there on."""
    count, none = len(batch.rows), np.zeros(0, np.int32)
    before = msgspec.structs.replace(
        batch, ends=np.full_like(batch.ends, layer), embeds=none, indptr=indptr([0] * count)
    )
    after = msgspec.structs.replace(
        batch, rows=np.full_like(batch.rows, -1), begins=before.ends, tiles=np.zeros_like(batch.tiles[:0])
    )
    return before, after


def copy_batch(source: np.ndarray, target: np.ndarray, lengths: Sequence[int] | None = None) -> CopyKvpage:
    """A batch of one command, unless `lengths` divides the arrays into several."""
    return CopyKvpage(source, target, indptr([len(source)] if lengths is None else lengths))


def sample_batch(embeds: np.ndarray, **changes: np.ndarray) -> Sample:
    """A greedy batch; `changes` are further arrays, or replace its own."""
    n = len(embeds)
    columns: dict[str, np.ndarray] = {
        "token_slots": ints(range(n)),
        "temperature": np.zeros(n, np.float32),
        "uniform": np.full(n, 0.5),
    }
    return Sample(embeds=embeds, **{**columns, **changes})


def dist_batch(embeds: np.ndarray, k: int, temperature: float = 1.0) -> GetNextDist:
    return GetNextDist(embeds, ints([k] * len(embeds)), np.full(len(embeds), temperature, np.float32))
