"""Weights that run by transformers' code have the number formats that `from_pretrained` gives them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from testing.worker_batches import Extend, Keys
from tests.helpers.borrowed import save_small
from tests.helpers.oracle import VOCAB, random_tokens
from tests.helpers.states import StateOracle
from tests.helpers.tiers import WHOLE


@pytest.mark.parametrize(
    "kind", ["deepseek_v3", "flint", *(pytest.param(kind, marks=WHOLE) for kind in ("bailing_hybrid", "muse_spark"))]
)
def test_what_transformers_keeps_in_float32_stays_so(kind: str, tmp_path: Path) -> None:
    model = save_small(kind, tmp_path)
    reference = type(model).from_pretrained(tmp_path, dtype=torch.bfloat16)
    expected = {name: tensor.dtype for name, tensor in reference.state_dict().items()}
    assert set(expected.values()) == {torch.bfloat16, torch.float32}
    oracle = StateOracle(tmp_path, model, dtype="bfloat16", model_code="transformers")
    borrowed: Any = oracle.worker._served.model
    served = borrowed._base.module.state_dict()
    for name, tensor in served.items():
        assert {tensor.dtype} == {dtype for whole, dtype in expected.items() if whole.endswith(name)}, name
    assert torch.float32 in {tensor.dtype for tensor in served.values()}
    [found] = oracle.driver().logprobs(Extend(Keys(), random_tokens(40)), vocab_size=VOCAB)
    assert np.isfinite(found).all()
