"""Batches whose commands look at one output or several, and their results (see messages.py)."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from .batch import Array, Batch, Layout, Result, check_indptr


class GetNextDist(Batch, frozen=True):
    """The most probable next tokens at the embeds of each command."""

    ragged: ClassVar[Layout] = {"embed_indptr": ("embeds",)}

    embeds: Array  # int32 [R]
    k: Array  # int32 [N], >= 1, at each embed
    temperature: Array  # float32 [N], > 0
    embed_indptr: Array | None = None  # int32 [N + 1]; None: each command has one embed

    def zeros(self) -> GetNextDistResult:
        none, several = np.zeros(self.count() + 1, np.int32), self.embed_indptr is not None
        tokens, rest = np.zeros(0, np.int32), np.zeros(0 if several else self.count(), np.float32)
        return GetNextDistResult(none, tokens, np.zeros(0, np.float32), rest, none if several else None)


class GetLogprobs(Batch, frozen=True):
    """Log-probabilities of given tokens at the embeds of each command, as many tokens at each of its embeds: the first
    ones are those at the first embed."""

    ragged: ClassVar[Layout] = {"indptr": ("tokens",), "embed_indptr": ("embeds",)}

    embeds: Array  # int32 [R]
    indptr: Array  # int32 [N + 1], each a multiple of the command's embeds
    tokens: Array  # int32 [T]
    embed_indptr: Array | None = None  # int32 [N + 1], none empty; None: each command has one embed

    def zeros(self) -> GetLogprobsResult:
        return GetLogprobsResult(np.zeros(len(self.tokens), np.float32))


class GetEmbedding(Batch, frozen=True):
    """One vector of the outputs at the embeds of each command: their mean, or the last one."""

    ragged: ClassVar[Layout] = {"indptr": ("embeds",)}

    embeds: Array  # int32 [R]
    indptr: Array  # int32 [N + 1], none empty
    mean: Array  # bool [N]
    dimensions: Array  # int32 [N], numbers of the vector that are kept, >= 1
    normalize: Array  # bool [N]: those are divided by their length

    def zeros(self) -> GetEmbeddingResult:
        return GetEmbeddingResult(np.zeros(self.count() + 1, np.int32), np.zeros(0, np.float32))


class GetNextDistResult(Result, frozen=True):
    """The answer to `GetNextDist`: k entries for each embed, most probable first; equal ones in the order of ids."""

    ragged: ClassVar[Layout] = {"indptr": ("tokens", "probabilities"), "rest_indptr": ("rest",)}

    indptr: Array  # int32 [N + 1]
    tokens: Array  # int32
    probabilities: Array  # float32
    rest: Array  # float32 [R], probability mass left out
    rest_indptr: Array | None = None  # int32 [N + 1], where the batch has `embed_indptr`


class GetLogprobsResult(Result, frozen=True):
    """The answer to `GetLogprobs`, in its order."""

    logprobs: Array  # float32 [T]


class GetEmbeddingResult(Result, frozen=True):
    """The answer to `GetEmbedding`."""

    ragged: ClassVar[Layout] = {"indptr": ("vectors",)}

    indptr: Array  # int32 [N + 1]
    vectors: Array  # float32


def embeds_of_each(batch: GetNextDist | GetLogprobs) -> Array:
    """How many embeds each command has. Raises ValueError."""
    if batch.embed_indptr is None:
        return np.ones(len(batch.embeds), np.int64)
    check_indptr(batch.embed_indptr, batch.count(), len(batch.embeds), "embed_indptr")
    return np.diff(batch.embed_indptr)


def tokens_of_each(batch: GetLogprobs) -> Array:
    """How many tokens are named at each embed. Raises ValueError."""
    embeds = embeds_of_each(batch)
    check_indptr(batch.indptr, len(embeds), len(batch.tokens), "indptr")
    listed = np.diff(batch.indptr)
    if (embeds < 1).any() or (listed % embeds).any():
        raise ValueError("a command has not as many tokens for each of its embeds")
    return (listed // embeds).repeat(embeds)
