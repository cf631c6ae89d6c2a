"""Every attention backend against dense float64 attention over random page layouts."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from attention_oracle import CASES, MakeBackend, Problem, assert_solves

from pie_inference.attention.torch_pages import TorchAttention

CPU = torch.device("cpu")
BACKENDS: Mapping[str, MakeBackend] = {"torch": TorchAttention}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", CASES)
def test_backends_equal_dense_attention(case: str, backend: str, dtype: str) -> None:
    assert_solves(Problem(CASES[case], DTYPES[dtype]), BACKENDS[backend], CPU)
