"""Samples one token at each embed, and writes it to a token slot for later batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import numpy as np
import torch
from torch import Tensor

from ..device.markers import mark_stream
from ..device.tensors import download, index_tensor, tensor, upload
from ..errors import BatchError
from ..execution import sampling
from ..execution.bias import bias_rows
from ..execution.choices import choice_of
from ..execution.launched import Faults, PendingResult, without_numbers
from ..execution.log_probabilities import Asked
from ..execution.served_model import ServedModel
from ..grammars.rows import MatcherStep
from ..protocol import Array, Sample, SampleResult, check_indptr, filled


def sample(served: ServedModel, batch: Sample) -> PendingResult:
    _check(batch, served.description.vocab_size)
    slots = index_tensor(batch.token_slots, len(served.tokens), "token slot")
    logits, slots = served.next_logits(batch.embeds, slots)
    asked = Asked.of(logits, batch.alternatives, served.sampling) if batch.alternatives is not None else None
    if batch.recent is not None and len(batch.recent):
        _penalize(served, batch, logits)
    if batch.bias_indptr is not None:
        bias_rows(batch, logits, np.arange(len(batch.embeds)))
    step = _follow_grammars(served, batch) if batch.matchers is not None else None
    masks = [] if step is None or not len(step.rows) else [(step.rows, step.allowed)]
    if batch.allowed is not None and batch.allowed_rows is not None and (batch.allowed_rows >= 0).any():
        masks.append(_own_mask(batch.allowed_rows, batch.allowed, masks))
    tokens = sampling.choose(logits, choice_of(batch), masks, served.sampling)
    tokens = served.ranks.broadcast(tokens)  # devices may differ in the last bit of a sum
    host = download(tokens)
    tokens = tokens.clamp(min=0)  # what may be launched already goes on from any token
    served.tokens.index_copy_(0, slots, tokens)
    answer = asked.begin(tokens) if asked is not None else None

    def build() -> SampleResult:
        chosen = host.clamp(min=0).numpy().astype(np.int32)
        result = SampleResult(chosen) if answer is None else answer.result(chosen)
        return result if step is None else msgspec.structs.replace(result, over=step.over(len(host)))

    def faults() -> Faults:
        rows = np.flatnonzero(host.numpy() < 0)
        wrong = without_numbers(rows if answer is None else np.append(rows, answer.without_numbers()))
        return wrong if step is None else (*wrong, *step.faults.items())

    if step is not None:
        step.sampled(_reader(host, mark_stream(served.device)))
    return PendingResult(build, faults)


def _check(batch: Sample, vocab_size: int) -> None:
    """Raises BatchError for masks that kernels would read beyond their ends."""
    for name, column in (("allowed_rows", batch.allowed_rows), ("matchers", batch.matchers)):
        if column is not None and len(column) != len(batch.embeds):
            raise BatchError(f"{name} has {len(column)} elements for {len(batch.embeds)} commands")
    size = -(-vocab_size // 8)
    if batch.allowed is not None and (batch.allowed.ndim != 2 or batch.allowed.shape[1] < size):
        raise BatchError(f"allowed has the shape {batch.allowed.shape}: a mask has {size} bytes, a bit for each token")


def _follow_grammars(served: ServedModel, batch: Sample) -> MatcherStep | None:
    """What grammars allow. The forward has been launched before, so a device computes meanwhile. None on ranks that get
    the tokens of the leader."""
    return None if served.constraints is None else served.constraints.step(batch)


def _reader(host: Tensor, end: torch.cuda.Event | None) -> Callable[[], Sequence[int]]:
    """Gives the tokens, once the device is so far."""

    def read() -> Sequence[int]:
        if end is not None:
            end.synchronize()
        tokens: list[int] = host.clamp(min=0).tolist()
        return tokens

    return read


def _penalize(served: ServedModel, batch: Sample, logits: Tensor) -> None:
    count, recent = len(batch.embeds), filled(batch.recent, 0, 0)
    indptr = filled(batch.recent_indptr, 0, 0)
    check_indptr(indptr, count, len(recent), "recent_indptr")
    rows = np.repeat(np.arange(count), np.diff(indptr))
    given = filled(batch.repetition, count, 1), filled(batch.frequency, count, 0), filled(batch.presence, count, 0)
    strengths = (upload(tensor(values, np.float32), logits.device) for values in given)
    tokens, places = served.token_ids(recent, torch.from_numpy(rows))
    sampling.penalize_(logits, places, tokens, *strengths)


def _own_mask(allowed_rows: Array, allowed: Array, masks: Sequence[sampling.Mask]) -> sampling.Mask:
    """The mask of rows that bring their own, but for those of `masks`, in which it is."""
    left = allowed_rows >= 0
    for rows, _ in masks:
        left[rows] = False
    rows = np.flatnonzero(left)
    return rows, allowed[allowed_rows[rows]].astype(np.uint8)
