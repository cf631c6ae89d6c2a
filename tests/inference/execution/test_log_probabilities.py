from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from pie_inference.execution import sampling
from pie_inference.execution.bias import bias_rows
from pie_inference.execution.log_probabilities import Asked
from testing.worker_batches import ints, sample_batch

LOGITS = torch.randn(4, 50, generator=torch.Generator().manual_seed(3))


def test_log_probabilities_are_those_of_the_logits_as_they_were() -> None:
    expected = LOGITS.double().log_softmax(-1)
    logits = LOGITS.clone()
    asked = Asked.of(logits, ints([3, -1, 0, 60]))
    logits.zero_()
    chosen = torch.tensor([7, 8, 9, 10])
    result = asked.begin(chosen).result(chosen.to(torch.int32).numpy())
    assert result.tokens.tolist() == [7, 8, 9, 10]
    assert result.score_indptr is not None
    assert result.scored is not None
    assert result.logprobs is not None
    assert result.score_indptr.tolist() == [0, 4, 4, 5, 56]
    assert result.scored[:5].tolist() == [7, *expected[0].topk(3).indices.tolist(), 9]
    assert result.scored[5:].tolist() == [10, *expected[3].sort(descending=True).indices.tolist()]
    rows = np.repeat([0, 2, 3], [4, 1, 51])
    wanted = expected[torch.from_numpy(rows), torch.from_numpy(result.scored.astype(np.int64))]
    assert torch.allclose(torch.from_numpy(result.logprobs).double(), wanted, atol=1e-5)


def test_rows_are_ranked_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.randn(64, 1000, generator=torch.Generator().manual_seed(4))
    whole, ranked, topk = Asked.of(logits, ints([5] * 64)), [], torch.Tensor.topk

    def noting(keys: torch.Tensor, width: int) -> Any:
        ranked.append(keys.numel())
        return topk(keys, width)

    monkeypatch.setattr(torch.Tensor, "topk", noting)
    monkeypatch.setattr(sampling, "MOST_LOGITS", 4096)
    asked = Asked.of(logits, ints([5] * 64))
    assert ranked == [4000] * 16
    assert torch.equal(asked.tokens, whole.tokens)
    assert torch.equal(asked.values, whole.values)


def test_a_bias_is_added_to_the_rows_of_its_command() -> None:
    batch = sample_batch(
        ints([0, 1]), bias_indptr=ints([0, 2, 3]), bias_tokens=ints([5, 0, 49]),
        bias_values=np.array([1, -2, 0.5], np.float32),
    )  # fmt: skip
    logits = LOGITS.clone()
    bias_rows(batch, logits, np.array([1, 0, 0, 1]))
    added = (logits - LOGITS).numpy().round(3)
    expected = np.zeros((4, 50), np.float32)
    expected[1:3, 5], expected[1:3, 0] = 1, -2
    expected[[0, 3], 49] = 0.5
    assert np.array_equal(added, expected)
