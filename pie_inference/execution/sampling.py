"""From logits to tokens: pure functions of float32 logits and parameters, vectorized over rows.

The token of a row depends only on its own logits and parameters, never on the rest of the batch. The order is:
penalties, logit bias, allowed tokens, temperature; then the candidates that pass top-k, top-p (of the mass that top-k
left) and min-p; of these the typical ones; then the inverse of their cumulative distribution at `uniform`. Equal logits
are in the order of token ids.

Sorting a whole vocabulary costs more than all the rest together (16 ms for 4 rows of 128k). So only top-k candidates
are sorted; or, if top-p or min-p are the only bounds, the first `NUCLEUS`, and `GROWTH` times as many until they reach
the bound. On CPUs a kernel does all that, but for typical tokens (`cpu_kernels/sampling.cpp`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..cpu_kernels.sampling import SamplingKernels
from ..device.tensors import upload
from ..errors import BatchError
from .choices import Choice, Integers

MOST_LOGITS = 1 << 23
"""Logits that are ranked at a time, unless one row has more: ranking takes about 40 bytes for each."""

NUCLEUS = 128
GROWTH = 16
SMALLEST_WIDTH = 64
MOST_NEAR = 1 << 17
"""Logits to which a mask is applied at a time, as many as a core has near."""

Draw = Callable[[Tensor, Tensor, Choice], Tensor]
"""Draws a token of each row, int64 [N, 1], from logits [N, vocab], the highest of each row [N, 1], and a choice."""
Mask = tuple[Integers, NDArray[np.uint8]]
"""Rows, in order and none twice, and the bits of the tokens that may come there [len(rows), ceil(vocab / 8)]."""


@dataclass(frozen=True)
class _Parameters:
    """A `Choice` on the device of the logits, [N, 1] each, and what the host knows of it: GPUs take longer to launch an
    operation than to run it, so operations that would change nothing are left out."""

    temperature: Tensor
    top_p: Tensor
    min_p: Tensor
    typical_p: Tensor
    uniform: Tensor
    most: Tensor  # int64, candidates that top-k leaves among those that are ranked
    has_top_k: Tensor  # int64, 1 or 0
    bounded: NDArray[np.bool_]  # rows with top-p
    limited: NDArray[np.bool_]  # rows with a top-k of less than the vocabulary
    has_min_p: bool


@dataclass(frozen=True)
class Ranking:
    """The most probable tokens of N rows, in order."""

    tokens: Tensor  # int64 [N, W]
    weights: Tensor  # float64 [N, W], exp((logit - highest) / temperature)
    cumulative: Tensor  # float64 [N, W], of the weights
    total: Tensor  # float64 [N, 1], weight of the whole vocabulary, for rows with top-p and without top-k


def penalize_(
    logits: Tensor, rows: Tensor, tokens: Tensor, repetition: Tensor, frequency: Tensor, presence: Tensor
) -> None:
    """Lowers the logits of recent tokens in place: token `tokens[i]` occurred in row `rows[i]`, int64 [M] each.

    `repetition` divides positive logits and multiplies negative ones (Keskar et al. 2019). `frequency` is subtracted
    for each occurrence, `presence` once. float32 [N] each. Everything is on one device, and nothing waits for it: each
    occurrence writes the same new logit.
    """
    where = (rows * logits.shape[1] + tokens).sort().values
    differs = where[1:] != where[:-1]
    place = torch.nn.functional.pad(differs.cumsum(0), (1, 0))  # among the distinct ones
    counts = torch.zeros_like(place).scatter_add_(0, place, torch.ones_like(place))[place]
    row, flat = where // logits.shape[1], logits.view(-1)
    seen = flat[where]
    seen = torch.where(seen > 0, seen / repetition[row], seen * repetition[row])
    flat[where] = seen - counts * frequency[row] - presence[row]


def forbid_(logits: Tensor, rows: Tensor, allowed: NDArray[np.uint8]) -> None:
    """Sets logits of `rows`, in order and none twice, to minus infinity where the bit of `allowed`
    [len(rows), ceil(vocab / 8)] is not set.

    Raises BatchError if a row would have no token left.
    """
    allowed = _tokens_left(allowed, logits.shape[1])
    if logits.device.type == "cpu":
        _forbid_on_cpu(logits.numpy(), rows.numpy(), allowed)
        return
    forbidden = unset_bits(upload(torch.from_numpy(allowed), logits.device), logits.shape[1])
    if len(rows) == len(logits):
        logits.masked_fill_(forbidden, -torch.inf)
    else:
        logits[rows] = logits[rows].masked_fill_(forbidden, -torch.inf)


def _tokens_left(allowed: NDArray[np.uint8], vocab_size: int) -> NDArray[np.uint8]:
    """The bits of the vocabulary's tokens; raises BatchError if a row has none."""
    allowed = allowed[:, : -(-vocab_size // 8)]
    last = allowed[:, -1] & (0xFF >> (-vocab_size % 8))
    if not (allowed[:, :-1].any(1) | (last != 0)).all():
        raise BatchError("the mask allows no token of the vocabulary")
    return allowed


def _forbid_on_cpu(logits: NDArray[np.float32], rows: Integers, allowed: NDArray[np.uint8]) -> None:
    """By a table of the most that each byte of a mask leaves of eight logits: 1 us for a row of 2k tokens, 0.1 ms for
    one of 128k. torch's `masked_fill_` takes 0.7 to 5 ms for that. NaN becomes what the table has."""
    each = max(1, MOST_NEAR // logits.shape[1])
    for first in range(0, len(rows), each):
        some = slice(first, first + each)
        most = _MOST.take(allowed[some]).view(np.float32)[:, : logits.shape[1]]
        if len(rows) == len(logits):
            np.fmin(logits[some], most, out=logits[some])
        else:
            logits[rows[some]] = np.fmin(logits[rows[some]], most)


def _most_of_bytes() -> NDArray[np.void]:
    """For each byte, eight float32: infinity where the bit is set, lowest first, else minus infinity; as one item of 32
    bytes."""
    bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
    return np.where(bits, np.float32(np.inf), np.float32(-np.inf)).view("V32")[:, 0]


_MOST = _most_of_bytes()


def unset_bits(packed: Tensor, count: int) -> Tensor:
    """Whether each of the first `count` bits is 0, bool [rows, count], from uint8 [rows, ceil(count / 8)]."""
    places = torch.arange(8, dtype=torch.uint8, device=packed.device)
    bits = packed[:, :, None].bitwise_right_shift(places).bitwise_and_(1)
    return bits.reshape(len(packed), -1)[:, :count] == 0


def most_probable(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The highest logit of each row [N, 1], for which NaN is taken, and its token, int64 [N, 1]. On a CPU numpy finds
    it: for 16 rows of 128k it takes 0.1 ms, torch's argmax 2.7 ms."""
    if logits.device.type != "cpu":
        return logits.max(-1, keepdim=True)
    tokens = torch.from_numpy(logits.numpy().argmax(-1, keepdims=True))
    return logits.gather(1, tokens), tokens


def choose(
    logits: Tensor, choice: Choice, masks: Sequence[Mask] = (), kernels: SamplingKernels | None = None
) -> Tensor:
    """One token for each row, int64 [N]; -1 where logits of tokens that may come are no numbers. Does not wait for a
    GPU. No row is in two of `masks`. The logits of tokens that may not come change, or are not read, where `kernels`
    find the most probable one.

    Raises BatchError if a row would have no token left.
    """
    found, hot = None, choice.temperature > 0
    if masks and kernels is not None:
        found = _find_most_probable(logits, masks, kernels)[:, None]
        masks = [(rows[hot[rows]], allowed[hot[rows]]) for rows, allowed in masks if hot[rows].any()]
    for rows, allowed in masks:
        forbid_(logits, upload(torch.from_numpy(rows), logits.device), allowed)
    highest, best = most_probable(logits) if found is None else (logits.gather(1, found), found)
    tokens = best
    for rows, draw in _groups(choice, hot, logits, kernels) if hot.any() else ():
        if len(rows) == len(logits):
            tokens = draw(logits, highest, choice)
        else:
            index = upload(torch.from_numpy(rows), logits.device)
            own = logits.index_select(0, index), highest.index_select(0, index)
            tokens.index_copy_(0, index, draw(*own, choice[rows]))
    return tokens.where(highest < torch.inf, -1).squeeze(1)


def _groups(
    choice: Choice, hot: NDArray[np.bool_], logits: Tensor, kernels: SamplingKernels | None
) -> Iterator[tuple[Integers, Draw]]:
    """Rows that are `hot`, by the function that draws their tokens."""
    if kernels is not None:
        usual = hot & (choice.typical_p >= 1)
        if usual.any():
            yield np.flatnonzero(usual), partial(_draw_by_kernel, kernels)
        if not (hot := hot & ~usual).any():
            return
    for rows, width in _by_width(choice, hot, logits.shape[1], can_look=logits.device.type == "cpu"):
        yield rows, partial(_draw, width=width)


def _find_most_probable(logits: Tensor, masks: Sequence[Mask], kernels: SamplingKernels) -> Tensor:
    """The most probable token that may come in each row, int64 [N]."""
    if len(masks[0][0]) == len(logits):
        rows, allowed = masks[0]
        return kernels.most_probable(logits, rows, _tokens_left(allowed, logits.shape[1]))
    tokens, left = torch.zeros(len(logits), dtype=torch.int64), np.ones(len(logits), np.bool_)
    for rows, allowed in masks:
        tokens[torch.from_numpy(rows)] = kernels.most_probable(logits, rows, _tokens_left(allowed, logits.shape[1]))
        left[rows] = False
    for row in np.flatnonzero(left).tolist():
        tokens[row] = int(logits[row].numpy().argmax())
    return tokens


def _by_width(
    choice: Choice, hot: NDArray[np.bool_], vocab_size: int, can_look: bool
) -> Iterator[tuple[Integers, int]]:
    """Rows that are `hot`, by the number of candidates to rank for them; 0: none, because every token is a candidate.
    Those that take the typical tokens are apart; what is typical follows from all candidates.

    If only top-p or min-p are bounds, that number depends on the logits. If the host cannot look at them without
    waiting for the device, all tokens are ranked: GPUs sort fast.
    """
    top_k, typical = choice.top_k, choice.typical_p < 1
    bounded = (choice.top_p < 1) | (choice.min_p > 0)
    width = np.where(typical, vocab_size, np.where(bounded, NUCLEUS if can_look else vocab_size, 0))
    if (limited := (top_k > 0) & (top_k < vocab_size)).any():
        power = np.exp2(np.ceil(np.log2(np.maximum(top_k, SMALLEST_WIDTH)))).astype(np.int64)
        width = np.where(limited, power, width)
    kinds = np.where(hot, 2 * np.minimum(width, vocab_size) + typical, -1)
    for kind in sorted(set(kinds.tolist()) - {-1}):
        rows = np.flatnonzero(kinds == kind)
        yield from ((rows[some], kind // 2) for some in _pieces(len(rows), vocab_size))


def _pieces(rows: int, vocab_size: int) -> Iterator[slice]:
    """Rows that are ranked together."""
    most = max(1, MOST_LOGITS // vocab_size)
    return (slice(first, min(first + most, rows)) for first in range(0, max(rows, 1), most))


def _to_device(choice: Choice, width: int, logits: Tensor) -> _Parameters:
    """In one copy."""
    floats = np.stack([choice.temperature, choice.top_p, choice.min_p, choice.typical_p, choice.uniform])
    limited = (choice.top_k > 0) & (choice.top_k < logits.shape[1])
    most = np.where(limited, np.minimum(choice.top_k, width), width)
    packed = np.concatenate([floats.view(np.int64), [most, limited]])[..., None]
    numbers = upload(torch.from_numpy(packed), logits.device)
    temperature, top_p, min_p, typical_p, uniform = numbers[: len(floats)].view(torch.float64)
    most, has_top_k = numbers[len(floats) :]
    known = choice.top_p < 1, limited, bool((choice.min_p > 0).any())
    return _Parameters(temperature, top_p, min_p, typical_p, uniform, most, has_top_k, *known)


def _draw_by_kernel(kernels: SamplingKernels, logits: Tensor, highest: Tensor, choice: Choice) -> Tensor:
    bounds = np.stack([choice.temperature, choice.top_p, choice.min_p, choice.uniform])
    return kernels.draw(logits, highest, bounds, choice.top_k)


def _draw(logits: Tensor, highest: Tensor, choice: Choice, width: int) -> Tensor:
    """A token of each row, int64 [N, 1]."""
    own = _to_device(choice, width, logits)
    if width == 0:
        return _invert(_weights(logits, highest, own).cumsum(-1), own.uniform)
    ranking = _rank(logits, highest, own, width)
    kept = _count_kept(ranking, own)
    if choice.typical_p[0] < 1:
        return _pick_typical(ranking, kept, own)
    tokens = _pick(ranking, kept, own.uniform)
    if width == logits.shape[1] or logits.device.type != "cpu":  # `_by_width` made sure that these are enough
        return tokens
    wide = np.flatnonzero((kept == width).numpy()[:, 0] & ~own.limited)
    if len(wide):
        rows = torch.from_numpy(wide)
        tokens[rows] = _draw(logits[rows], highest[rows], choice[wide], min(width * GROWTH, logits.shape[1]))
    return tokens


def _pick_typical(ranking: Ranking, kept: Tensor, own: _Parameters) -> Tensor:
    """Among the tokens whose surprise is closest to the entropy of all candidates, as many as reach the mass
    `typical_p` (Meister et al. 2023, locally typical sampling)."""
    places = torch.arange(ranking.tokens.shape[1], device=kept.device)
    weights = ranking.weights.masked_fill(places >= kept, 0.0)
    shares = weights / weights.sum(-1, keepdim=True)
    surprise = -shares.log()
    entropy = torch.where(shares > 0, shares * surprise, 0.0).sum(-1, keepdim=True)
    order = (surprise - entropy).abs().sort(dim=-1, stable=True).indices
    shares = shares.gather(1, order)
    cumulative = shares.cumsum(-1)
    kept = ((cumulative - shares) < own.typical_p).logical_and_(shares > 0).sum(-1, keepdim=True).clamp_(min=1)
    typical = Ranking(ranking.tokens.gather(1, order), shares, cumulative, cumulative[:, -1:])
    return _pick(typical, kept, own.uniform)


def _rank(logits: Tensor, highest: Tensor, own: _Parameters, width: int) -> Ranking:
    values, tokens = top(logits, width)
    weights = _weights(values, highest, own)
    cumulative = weights.cumsum(-1)
    if width < logits.shape[1] and (own.bounded & ~own.limited).any():
        return Ranking(tokens, weights, cumulative, _weights(logits, highest, own).sum(-1, keepdim=True))
    return Ranking(tokens, weights, cumulative, cumulative[:, -1:])


def _weights(logits: Tensor, highest: Tensor, own: _Parameters) -> Tensor:
    return (logits - highest).double().div_(own.temperature).exp_()


def _count_kept(ranking: Ranking, own: _Parameters) -> Tensor:
    """The number of ranked tokens that are candidates, int64 [N, 1], at least 1."""
    cumulative, weights = ranking.cumulative, ranking.weights
    kept = None
    if own.bounded.any():
        limit = ranking.total
        if own.limited.any():
            limit = torch.where(own.has_top_k > 0, cumulative.gather(1, own.most - 1), limit)
        kept = (cumulative - weights) < own.top_p * limit
        if not own.bounded.all():
            kept |= own.top_p >= 1
    if own.has_min_p:
        likely = weights >= own.min_p * weights[:, :1]
        kept = likely if kept is None else kept & likely
    return own.most if kept is None else torch.minimum(kept.sum(-1, keepdim=True), own.most).clamp_(min=1)


def _pick(ranking: Ranking, kept: Tensor, uniform: Tensor) -> Tensor:
    last = kept - 1
    target = uniform * ranking.cumulative.gather(1, last)
    place = torch.minimum(torch.searchsorted(ranking.cumulative, target, right=True), last)
    return ranking.tokens.gather(1, place)


def _invert(cumulative: Tensor, uniform: Tensor) -> Tensor:
    """The first index in each row whose cumulative weight exceeds the share `uniform` of the total."""
    target = uniform * cumulative[:, -1:]
    return torch.searchsorted(cumulative, target, right=True).clamp_(max=cumulative.shape[1] - 1)


def top(logits: Tensor, width: int, kernels: SamplingKernels | None = None) -> tuple[Tensor, Tensor]:
    """Values and token ids [N, width] of the highest logits in order; equal ones in the order of their ids.

    Each logit becomes an integer: its high half has the order of the float, its low half is the id. So there are no
    ties, which `topk` could order differently in another batch. These take memory, so only some rows at a time have
    them. Whole vocabularies are sorted, which keeps equal ones in order without ids.
    """
    if kernels is not None:
        tokens, _ = kernels.rank(logits, width)
        return logits.gather(1, tokens), tokens
    pieces = [*_pieces(len(logits), logits.shape[1])]
    if len(pieces) < 2:
        return _top(logits, width)
    parts = [_top(logits[some], width) for some in pieces]
    return torch.cat([values for values, _ in parts]), torch.cat([ids for _, ids in parts])


def _top(logits: Tensor, width: int) -> tuple[Tensor, Tensor]:
    bits = logits.contiguous().view(torch.int32)
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    last = logits.shape[1] - 1
    if width > last:
        tokens = ordered.sort(dim=-1, descending=True, stable=True).indices
        return logits.gather(1, tokens), tokens
    keys = torch.add(_places(last, logits.device), ordered, alpha=1 << 32)
    tokens = last - (keys.topk(width).values & 0xFFFFFFFF)
    return logits.gather(1, tokens), tokens


@lru_cache(maxsize=4)
def _places(last: int, device: torch.device) -> Tensor:
    """From `last` to 0, int64."""
    return torch.arange(last, -1, -1, device=device)


def distributions(
    logits: Tensor, temperature: Tensor, width: int, kernels: SamplingKernels | None = None
) -> tuple[Tensor, Tensor]:
    """Token ids int64 and probabilities float64 [N, width], most probable first, at `temperature` float64 [N]."""
    if kernels is not None:
        return kernels.rank(logits, width, temperature)
    parts = [
        _distributions(logits[some], temperature[some, None], width) for some in _pieces(len(logits), logits.shape[1])
    ]
    tokens, probabilities = zip(*parts, strict=True)
    return torch.cat(tokens), torch.cat(probabilities)


def _distributions(logits: Tensor, temperature: Tensor, width: int) -> tuple[Tensor, Tensor]:
    values, tokens = top(logits, width)
    total = ((logits - values[:, :1]).double() / temperature).exp_().sum(-1, keepdim=True)
    return tokens, ((values - values[:, :1]).double() / temperature).exp_() / total
