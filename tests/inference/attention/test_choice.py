"""Which attention backend serves."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pie_inference.attention import choose
from pie_inference.attention.choose import CANDIDATES, Requirements, choose_attention
from pie_inference.attention.interface import AttentionBackend, AttentionSpec
from pie_inference.cpu_kernels.library import Library
from pie_inference.errors import ConfigError
from pie_inference.kv_cache.pages import KvCache, KvShape
from pie_inference.options import option_fields

CPU = torch.device("cpu")
SHAPE = KvShape(1, 2, 16, 8, torch.float32)
NEEDED = Requirements(SHAPE, 4, CPU, 4, (AttentionSpec(scale=0.25),))


def choose_for(name: str, needed: Requirements = NEEDED) -> str:
    """Name of the class that serves."""
    return type(choose_attention(name, needed, KvCache(needed.shape, needed.num_pages, needed.device))).__name__


def test_the_options_name_the_candidates() -> None:
    [option] = [option for option in option_fields() if option.name == "attention"]
    assert set(option.metadata["choices"]) == {"auto", *CANDIDATES}


def test_auto_takes_the_first_that_can(monkeypatch: pytest.MonkeyPatch) -> None:
    torch_candidate = CANDIDATES["torch"]
    elsewhere = replace(torch_candidate, devices=("cuda",))
    blocked = replace(torch_candidate, why_unsuitable=lambda _: "it is broken")
    monkeypatch.setattr(choose, "CANDIDATES", {"a": elsewhere, "b": blocked, "torch": torch_candidate})
    assert choose_for("auto") == "TorchAttention"


def test_auto_goes_on_where_kernels_do_not_compile(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: Requirements, __: KvCache) -> AttentionBackend:
        raise ConfigError("there is no nvcc")

    broken = replace(CANDIDATES["torch"], make=fail)
    monkeypatch.setattr(choose, "CANDIDATES", {"fast": broken, "torch": CANDIDATES["torch"]})
    assert choose_for("auto") == "TorchAttention"
    assert "attention fast cannot serve: there is no nvcc" in caplog.text
    with pytest.raises(ConfigError, match="no nvcc"):
        choose_for("fast")


def test_triton_whose_kernels_do_not_compile_leaves_it_to_torch(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> AttentionBackend:
        raise OSError("out of resource: shared memory")

    monkeypatch.setitem(sys.modules, "pie_inference.attention.triton.pages", SimpleNamespace(TritonAttention=fail))
    able = replace(CANDIDATES["triton"], why_unsuitable=lambda _: None)
    monkeypatch.setattr(choose, "CANDIDATES", {"triton": able, "torch": CANDIDATES["torch"]})
    assert choose_for("auto") == "TorchAttention"
    assert "Triton's attention cannot start: out of resource: shared memory" in caplog.text


def test_a_gpu_without_fast_kernels_is_told_why(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    blocked = replace(CANDIDATES["triton"], why_unsuitable=lambda _: "there is no C compiler")
    monkeypatch.setattr(choose, "CANDIDATES", {"triton": blocked, "torch": CANDIDATES["torch"]})
    needed = replace(NEEDED, device=torch.device("cuda"))
    assert type(choose_attention("auto", needed, KvCache(SHAPE, 4, CPU))).__name__ == "TorchAttention"
    assert "attention triton cannot serve: there is no C compiler" in caplog.text


@pytest.mark.parametrize(
    ("head_dim", "dtype", "with_library", "reason"),
    [
        (16, torch.float32, False, "there are no compiled kernels here"),
        (24, torch.float32, True, "its kernel takes head dimensions that are multiples of 16, not 24"),
        (16, torch.float16, True, "its kernel does not support torch.float16"),
    ],
)
def test_the_cpu_kernel_says_why_it_cannot_serve(
    library: Library, head_dim: int, dtype: torch.dtype, with_library: bool, reason: str
) -> None:
    shape = KvShape(1, 2, head_dim, 8, dtype)
    needed = replace(NEEDED, shape=shape, library=library if with_library else None)
    with pytest.raises(ConfigError, match=f"--attention cpu: {reason}"):
        choose_for("cpu", needed)
    assert choose_for("auto", needed) == "TorchAttention"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"devices": ("cuda",)}, "it runs on cuda, not on cpu"),
        ({"why_unsuitable": lambda _: "it is broken"}, "it is broken"),
    ],
)
def test_a_choice_that_cannot_serve_is_refused(
    monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], reason: str
) -> None:
    candidate = replace(CANDIDATES["torch"], **change)
    monkeypatch.setattr(choose, "CANDIDATES", {"odd": candidate, **CANDIDATES})
    with pytest.raises(ConfigError, match=f"--attention odd: {reason}"):
        choose_for("odd")
