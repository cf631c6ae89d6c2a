"""Sampling against a reference that sorts the whole vocabulary and follows the definition word by word."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from pie_inference.cpu_kernels.library import find_library
from pie_inference.cpu_kernels.sampling import SamplingKernels
from pie_inference.errors import BatchError
from pie_inference.execution import sampling
from pie_inference.execution.choices import Choice
from pie_inference.execution.served_model import ServedModel
from pie_inference.handlers import sample
from testing.worker_batches import ints, sample_batch
from tests.helpers.kernels import needs_kernels

VOCAB = 3000


def choice(n: int, **changes: Any) -> Choice:
    given = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "typical_p": 1.0, "uniform": 0.5, **changes}
    kinds = {name: np.int64 if name == "top_k" else np.float64 for name in given}
    columns: dict[str, Any] = {name: np.full(n, value, kinds[name]) for name, value in given.items()}
    return Choice(**columns)


def entropy(probabilities: np.ndarray) -> float:
    """In nats."""
    some = probabilities[probabilities > 0]
    return float(-(some * np.log(some)).sum())


def reference_distribution(
    logits: np.ndarray, temperature: float, top_k: int, top_p: float, min_p: float, typical_p: float = 1.0
) -> np.ndarray:
    """Probabilities [vocab] of one row after all bounds."""
    order = np.argsort(-logits, kind="stable")
    weights = np.exp((logits[order].astype(np.float64) - logits.max()) / temperature)
    if top_k:
        weights[top_k:] = 0
    share = weights / weights.sum()
    before = np.cumsum(share) - share
    kept = (before < top_p) & (share >= min_p * share[0])
    kept[0] = True
    if typical_p < 1:
        share = np.where(kept, share, 0) / share[kept].sum()
        distance = [abs(-np.log(p) - entropy(share)) if p > 0 else np.inf for p in share]
        kept = np.zeros(len(kept), bool)
        for place in np.argsort(distance, kind="stable"):
            if share[kept].sum() >= typical_p:
                break
            kept[place] = True
    probabilities = np.zeros(len(logits))
    probabilities[order] = np.where(kept, share, 0)
    normalized: np.ndarray = probabilities / probabilities.sum()
    return normalized


def random_logits(n: int, scale: float = 3.0, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(0, scale, (n, VOCAB)).astype(np.float32))


BOUNDS = [
    {},
    {"temperature": 0.3},
    {"temperature": 3.0},
    {"top_k": 1},
    {"top_k": 40},
    {"top_k": 1500},
    {"top_k": VOCAB + 7},
    {"top_k": VOCAB + 7, "top_p": 0.9, "temperature": 30.0},
    {"top_p": 0.1},
    {"top_p": 0.9},
    {"top_p": 0.999999},
    {"min_p": 0.05},
    {"min_p": 1e-9},
    {"top_k": 100, "top_p": 0.8, "min_p": 0.02, "temperature": 1.7},
    {"typical_p": 0.2},
    {"typical_p": 0.95, "temperature": 0.5},
    {"typical_p": 0.5, "top_k": 30},
    {"typical_p": 0.3, "top_p": 0.7, "min_p": 0.001},
    {"typical_p": 1e-9},
    {"top_p": 0.95, "temperature": 20.0},  # far more candidates than are ranked at first
]


@pytest.mark.parametrize("bounds", BOUNDS, ids=str)
def test_tokens_follow_the_reference_distribution(bounds: dict[str, float]) -> None:
    """An even grid of `uniform` must give each token as often as its probability says, to within one grid step."""
    steps = 1000
    logits = random_logits(1)
    uniform = (np.arange(steps) + 0.5) / steps
    tokens = sampling.choose(logits.expand(steps, -1).contiguous(), choice(steps, uniform=uniform, **bounds))
    arguments: dict[str, Any] = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "typical_p": 1.0, **bounds}
    expected = reference_distribution(logits[0].numpy(), **arguments)
    counts = np.bincount(tokens.numpy(), minlength=VOCAB)
    assert np.abs(counts - steps * expected).max() <= 1.0 + 1e-3
    assert not counts[expected == 0].any()


def test_a_row_does_not_depend_on_its_batch() -> None:
    logits, rng = random_logits(64), np.random.default_rng(1)
    all_rows = choice(
        64,
        temperature=rng.choice([0, 0.5, 1.0, 2.0], 64),
        top_k=rng.choice([0, 5, 300], 64),
        top_p=rng.choice([1.0, 0.5, 0.99], 64),
        min_p=rng.choice([0.0, 0.1], 64),
        typical_p=rng.choice([1.0, 0.3], 64),
        uniform=rng.random(64),
    )
    together = sampling.choose(logits, all_rows)
    for row in range(64):
        only = np.array([row])
        assert sampling.choose(logits[only], all_rows[only])[0] == together[row]


def test_zero_temperature_is_greedy_and_ties_go_to_the_lower_id() -> None:
    logits = torch.zeros(2, VOCAB)
    logits[:, [7, 2900]] = 1.0
    assert sampling.choose(logits, choice(2, temperature=[0.0, 0.0])).tolist() == [7, 7]
    assert sampling.choose(logits, choice(2, temperature=[0.0, 1.0], top_k=1)).tolist() == [7, 7]


MASKS: dict[str, list[sampling.Mask]] = {
    "no mask": [],
    "a mask": [(np.array([0, 2]), np.full((2, -(-VOCAB // 8)), 0b10001, np.uint8))],
}


@pytest.mark.parametrize("masks", MASKS)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_no_numbers_have_no_token(temperature: float, masks: str) -> None:
    logits = random_logits(4)
    whole = sampling.choose(logits.clone(), choice(4, temperature=temperature), MASKS[masks])
    logits[1, 7] = logits[2] = math.nan
    found = sampling.choose(logits, choice(4, temperature=temperature), MASKS[masks])
    assert found.tolist() == [whole[0], -1, -1, whole[3]]


@pytest.mark.parametrize("masks", MASKS)
@pytest.mark.parametrize("bounds", [{"temperature": 0.0}, {"top_k": 9}, {"top_p": 0.5}, {"typical_p": 0.5}, {}])
def test_a_device_is_not_waited_for(bounds: dict[str, float], masks: str) -> None:
    """One without memory: whatever would read a number of it fails."""
    from torch import _dynamo  # noqa: F401  operations on this device import it

    none = torch.empty(4, VOCAB, device="meta")
    assert sampling.choose(none, choice(4, **bounds), MASKS[masks]).shape == (4,)
    with pytest.raises(NotImplementedError):
        none.cpu()


@needs_kernels
def test_the_extremes_of_uniform_are_tokens_that_may_be_sampled(kernel_cache: Path) -> None:
    """Sums of a part of the vocabulary may be rounded otherwise than those of its tokens one by one."""
    library = find_library("own", kernel_cache, torch.device("cpu"))
    assert library is not None
    logits = random_logits(40)
    logits[:, 256:] = -torch.inf
    uniform = [0.0, np.nextafter(1.0, 0.0)] * 20
    for kernels in (None, SamplingKernels(library)):
        for bounds in ({}, {"top_p": 0.9}, {"top_k": 300}):
            assert (sampling.choose(logits, choice(40, uniform=uniform, **bounds), kernels=kernels) < 256).all()


def test_top_orders_equal_values_by_id() -> None:
    logits = torch.tensor([[1.0, -2.0, 1.0, 3.0, -2.0, 1.0, -torch.inf, 0.0]])
    values, tokens = sampling.top(logits, 8)
    assert tokens.tolist() == [[3, 0, 2, 5, 7, 1, 4, 6]]
    assert torch.equal(values, logits.gather(1, tokens))
    assert sampling.top(logits, 3)[1].tolist() == [[3, 0, 2]]


def test_penalties_count_occurrences() -> None:
    logits = torch.tensor([[2.0, -2.0, 1.0, 1.0], [2.0, -2.0, 1.0, 1.0]])
    rows, tokens = torch.tensor([0, 0, 1, 0]), torch.tensor([0, 1, 2, 0])
    ones = torch.ones(2)
    sampling.penalize_(logits, rows, tokens, 2 * ones, 0.25 * ones, torch.tensor([0.5, 0.0]))
    assert logits.tolist() == [[0.0, -4.75, 1.0, 1.0], [2.0, -2.0, 0.25, 1.0]]


def test_penalties_are_those_of_each_row_alone() -> None:
    generator = np.random.default_rng(3)
    logits, strengths = random_logits(5), torch.from_numpy(generator.uniform(0.1, 2, (3, 5)).astype(np.float32))
    rows, tokens = generator.integers(0, 5, 400), generator.integers(0, 40, 400)
    expected = logits.clone()
    for row, token in {*zip(rows.tolist(), tokens.tolist(), strict=True)}:
        count = int(((rows == row) & (tokens == token)).sum())
        seen, (repetition, frequency, presence) = expected[row, token], strengths[:, row]
        seen = seen / repetition if seen > 0 else seen * repetition
        expected[row, token] = seen - count * frequency - presence
    sampling.penalize_(logits, torch.from_numpy(rows), torch.from_numpy(tokens), *strengths)
    assert torch.equal(logits, expected)


def test_penalties_on_tokens_that_are_still_on_the_device_read_nothing_back() -> None:
    """A device without memory: what would wait for numbers fails."""
    from torch import _dynamo  # noqa: F401  operations on this device import it

    none = torch.device("meta")
    tokens = torch.empty(8, dtype=torch.int64, device=none)
    served: Any = SimpleNamespace(tokens=tokens, device=none, description=SimpleNamespace(vocab_size=VOCAB))
    served.token_ids = partial(ServedModel.token_ids, served)
    batch = sample_batch(ints([0, 0]), recent=ints([-3, 5, -1]), recent_indptr=ints([0, 2, 3]))
    sample._penalize(served, batch, torch.empty(2, VOCAB, device=none))
    with pytest.raises(NotImplementedError):
        tokens.cpu()


def test_forbidden_tokens_are_never_sampled() -> None:
    logits = random_logits(3)
    allowed = np.packbits(np.isin(np.arange(VOCAB), [5, 77, 2999]), bitorder="little")[None]
    sampling.forbid_(logits, torch.tensor([1]), allowed)
    tokens = sampling.choose(logits, choice(3, temperature=[0.0, 5.0, 0.0]))
    assert tokens[1] in (5, 77, 2999)
    assert torch.isfinite(logits[[0, 2]]).all()


@pytest.mark.parametrize("rows", [[0, 1, 2, 3, 4], [0, 3]])
@pytest.mark.parametrize("near", [1, 2 * VOCAB, 1 << 17])
def test_only_what_is_forbidden_changes(rows: list[int], near: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "MOST_NEAR", near)
    logits = random_logits(5)
    logits[:, 7], logits[:, 9] = torch.inf, -torch.inf
    before = logits.clone()
    may = np.random.default_rng(1).random((len(rows), VOCAB)) < 0.3
    may[:, :10] = [True] * 7 + [False] + [True] * 2
    sampling.forbid_(logits, torch.tensor(rows), np.packbits(may, axis=1, bitorder="little"))
    before[rows] = before[rows].masked_fill(torch.from_numpy(~may), -torch.inf)
    assert torch.equal(logits, before)


@needs_kernels
@pytest.mark.parametrize("size", [3000, 64, 7, 130])
@pytest.mark.parametrize("density", [0.0, 0.02, 0.9, 1.0])
def test_the_kernel_finds_the_tokens_that_a_mask_leaves(size: int, density: float, kernel_cache: Path) -> None:
    library = find_library("own", kernel_cache, torch.device("cpu"))
    assert library is not None
    random = np.random.default_rng(size)
    logits = torch.from_numpy(random.integers(-9, 9, (12, size)).astype(np.float32))  # many are equal
    logits[3] = -torch.inf
    may = random.random((8, size)) < density
    may[np.arange(8), random.integers(0, size, 8)] = True
    rows, own = np.array([0, 1, 3, 5, 6]), np.array([2, 7, 10])
    packed = np.packbits(may, axis=1, bitorder="little")
    packed[:, -1] |= 0xFF << (size - 1) % 8 + 1 & 0xFF  # bits behind the vocabulary are no tokens
    chosen = choice(12, temperature=[0.0] * 5 + [1.0] * 3 + [0.0] * 4, uniform=np.linspace(0, 0.99, 12))
    masks = [(rows, packed[:5]), (own, packed[5:])]
    expected = sampling.choose(logits.clone(), chosen, masks)
    expected[3] = int(may[2].argmax())  # the first that may come
    found = sampling.choose(logits, chosen, masks, SamplingKernels(library))
    assert torch.equal(found, expected)


@needs_kernels
@pytest.mark.parametrize("size", [3000, 64, 7, 1])
@pytest.mark.parametrize("ties", [False, True])
def test_the_kernel_draws_the_tokens_of_torch(size: int, ties: bool, kernel_cache: Path) -> None:
    library = find_library("own", kernel_cache, torch.device("cpu"))
    assert library is not None
    rng, rows = np.random.default_rng(size), 600
    scores = rng.integers(-3, 3, (rows, size)) if ties else rng.normal(0, 4, (rows, size))
    logits = torch.from_numpy(scores.astype(np.float32))
    logits[::3, 1::2] = -torch.inf
    logits[7, 0], logits[8, 0], logits[9] = torch.nan, torch.inf, -torch.inf
    mixed = choice(
        rows,
        temperature=rng.choice([0, 1e-3, 0.5, 1.0, 50.0], rows),
        top_k=rng.choice([0, 0, 1, 5, 64, 2999, 10_000], rows),
        top_p=rng.choice([1.0, 1.0, 1e-6, 0.5, 0.99, 1 - 1e-12], rows),
        min_p=rng.choice([0.0, 0.0, 0.1, 1e-9, 1.0], rows),
        typical_p=rng.choice([1.0, 1.0, 1.0, 0.5], rows),
        uniform=rng.random(rows),
    )
    expected = sampling.choose(logits, mixed)
    found = sampling.choose(logits, mixed, kernels=SamplingKernels(library))
    assert (expected[7:9] < 0).all()
    expected[9] = found[9]  # no token may come there: any is taken
    assert torch.equal(found, expected)


@needs_kernels
def test_the_kernels_read_nothing_behind_their_arrays(kernel_cache: Path) -> None:
    """Whatever a message has that is wrong."""
    library = find_library("own", kernel_cache, torch.device("cpu"))
    assert library is not None
    kernels, logits = SamplingKernels(library), random_logits(4)
    for bound in ({"min_p": 1.5}, {"min_p": math.nan}, {"top_p": math.nan}, {"top_p": 0.0}, {"uniform": 2.0}):
        tokens = sampling.choose(logits, choice(4, **bound), kernels=kernels)
        assert ((tokens >= 0) & (tokens < VOCAB)).all()
    with pytest.raises(ValueError, match="top_k has 3 elements for 4 rows"):
        sampling.choose(logits, replace(choice(4), top_k=np.zeros(3, np.int64)), kernels=kernels)
    with pytest.raises(ValueError, match="temperature has 5 elements for 4 rows"):
        sampling.distributions(logits, torch.ones(5, dtype=torch.float64), 3, kernels)
    assert sampling.top(logits, VOCAB + 9, kernels)[1].shape == (4, VOCAB)


@needs_kernels
@pytest.mark.parametrize("width", [1, 20, 700])
def test_the_kernel_ranks_tokens_as_torch_does(width: int, kernel_cache: Path) -> None:
    library = find_library("own", kernel_cache, torch.device("cpu"))
    assert library is not None
    kernels, rng = SamplingKernels(library), np.random.default_rng(width)
    logits = torch.from_numpy(rng.normal(0, 3, (9, 700)).astype(np.float32))
    logits[1].round_()
    logits[2, 1::2], logits[3, 500] = -torch.inf, torch.nan
    temperature = torch.from_numpy(rng.choice([0.01, 1.0, 30.0], 9))
    tokens, probabilities = sampling.distributions(logits, temperature, width, kernels)
    expected = sampling.distributions(logits, temperature, width)
    assert probabilities[3].isnan().all()
    assert (np.delete(tokens.numpy(), 3, 0) == np.delete(expected[0].numpy(), 3, 0)).all()
    torch.testing.assert_close(probabilities, expected[1], rtol=1e-12, atol=1e-300, equal_nan=True)
    values, same = sampling.top(logits, width, kernels)
    assert torch.equal(same, tokens)
    assert torch.equal(values[:3], logits.gather(1, tokens)[:3])


def test_a_mask_without_tokens_is_refused() -> None:
    """Bits behind the vocabulary are no tokens."""
    allowed = np.packbits(np.arange(3008) >= VOCAB, bitorder="little")[None]
    with pytest.raises(BatchError, match="the mask allows no token"):
        sampling.forbid_(random_logits(3), torch.tensor([2]), allowed)


@pytest.mark.parametrize("most", [1, 3 * VOCAB, 1 << 23])
def test_rows_are_ranked_in_pieces_of_any_size(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    logits = random_logits(10)
    rows = choice(10, top_k=[5, 0] * 5, top_p=[0.9, 0.5, 1.0, 1.0, 0.1] * 2, uniform=np.linspace(0, 0.99, 10))
    alone = [sampling.choose(logits[row : row + 1], rows[np.array([row])]) for row in range(10)]
    temperature = torch.linspace(0.5, 2, 10, dtype=torch.float64)
    expected = sampling.distributions(logits, temperature, 20)
    seen, top = list[int](), sampling.top

    def noting(logits: torch.Tensor, width: int) -> tuple[torch.Tensor, torch.Tensor]:
        seen.append(logits.numel())
        return top(logits, width)

    monkeypatch.setattr(sampling, "MOST_LOGITS", most)
    monkeypatch.setattr(sampling, "top", noting)
    assert torch.equal(sampling.choose(logits, rows), torch.cat(alone))
    assert all(map(torch.equal, sampling.distributions(logits, temperature, 20), expected))
    assert max(seen) <= max(most, VOCAB)


def test_distributions() -> None:
    logits = random_logits(2)
    tokens, probabilities = sampling.distributions(logits, torch.tensor([1.0, 0.5], dtype=torch.float64), 10)
    for row, temperature in enumerate((1.0, 0.5)):
        expected = reference_distribution(logits[row].numpy(), temperature, 0, 1.0, 0.0)
        order = np.argsort(-expected, kind="stable")[:10]
        assert tokens[row].tolist() == order.tolist()
        np.testing.assert_allclose(probabilities[row].numpy(), expected[order], rtol=1e-6)


def test_a_choice_of_rows_keeps_their_parameters() -> None:
    both = replace(choice(2), uniform=np.array([0.25, 0.75]))
    assert both[np.array([1])].uniform.tolist() == [0.75]


def test_ranking_everything_gives_the_same_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a GPU does, where the host cannot look how many candidates the logits have."""
    rng, rows = np.random.default_rng(2), 300
    logits = random_logits(rows)
    mixed = choice(
        rows,
        temperature=rng.choice([0, 0.5, 1.0, 5.0], rows),
        top_k=rng.choice([0, 5, 128, 300], rows),
        top_p=rng.choice([1.0, 0.5, 0.99], rows),
        min_p=rng.choice([0.0, 0.1, 1e-6], rows),
        uniform=rng.random(rows),
    )
    expected = sampling.choose(logits, mixed)
    by_width = sampling._by_width
    monkeypatch.setattr(
        sampling, "_by_width", lambda one, hot, size, can_look: by_width(one, hot, size, can_look=False)
    )
    assert torch.equal(sampling.choose(logits, mixed), expected)
