"""Batches whose commands look at several outputs each, and their results (see messages.py)."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from .batch import Array, Batch, Layout, Result


class GetNextDists(Batch, frozen=True):
    """The most probable next tokens at several embeds of each command."""

    ragged: ClassVar[Layout] = {"indptr": ("embeds",)}

    embeds: Array  # int32 [R]
    indptr: Array  # int32 [N + 1]
    k: Array  # int32 [N], >= 1, at each embed
    temperature: Array  # float32 [N], > 0

    def zeros(self) -> GetNextDistsResult:
        none = np.zeros(self.count() + 1, np.int32)
        return GetNextDistsResult(none, np.zeros(0, np.int32), np.zeros(0, np.float32), none, np.zeros(0, np.float32))


class GetLogprobsAt(Batch, frozen=True):
    """Log-probabilities of given tokens at several embeds of each command, as many tokens at each: the first ones of a
    command are those at its first embed."""

    ragged: ClassVar[Layout] = {"indptr": ("embeds",), "token_indptr": ("tokens",)}

    embeds: Array  # int32 [R]
    indptr: Array  # int32 [N + 1], none empty
    tokens: Array  # int32 [T]
    token_indptr: Array  # int32 [N + 1], each a multiple of the command's embeds

    def zeros(self) -> GetLogprobsAtResult:
        return GetLogprobsAtResult(np.zeros(len(self.tokens), np.float32))


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


class GetNextDistsResult(Result, frozen=True):
    """The answer to `GetNextDists`: k entries for each embed, most probable first; equal ones in the order of ids."""

    ragged: ClassVar[Layout] = {"indptr": ("tokens", "probabilities"), "rest_indptr": ("rest",)}

    indptr: Array  # int32 [N + 1]
    tokens: Array  # int32
    probabilities: Array  # float32
    rest_indptr: Array  # int32 [N + 1]
    rest: Array  # float32 [R], probability mass left out


class GetLogprobsAtResult(Result, frozen=True):
    """The answer to `GetLogprobsAt`, in its order."""

    logprobs: Array  # float32 [T]


class GetEmbeddingResult(Result, frozen=True):
    """The answer to `GetEmbedding`."""

    ragged: ClassVar[Layout] = {"indptr": ("vectors",)}

    indptr: Array  # int32 [N + 1]
    vectors: Array  # float32
