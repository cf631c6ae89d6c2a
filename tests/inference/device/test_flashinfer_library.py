"""Whether FlashInfer can be used, and what a user is told where it cannot."""

from __future__ import annotations

import io
import shutil
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pie_inference.attention import choose
from pie_inference.attention.choose import Requirements
from pie_inference.attention.flashinfer.pages import FlashInferAttention
from pie_inference.attention.interface import AttentionSpec
from pie_inference.device import flashinfer_library as library
from pie_inference.device.flashinfer_library import ModuleKey
from pie_inference.errors import ConfigError
from pie_inference.kv_cache.pages import KvCache, KvShape
from pie_inference.options import compiling
from tests.helpers.fake_flashinfer import fake_flashinfer
from tests.helpers.guard import HANG_SECONDS

CUDA, CPU = torch.device("cuda"), torch.device("cpu")


def compiled_in(folder: Path, *names: str) -> None:
    """As FlashInfer leaves compiled modules."""
    for name in names:
        (folder / name).mkdir(parents=True)
        (folder / name / f"{name}.so").touch()


@pytest.fixture
def hopper(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine with such a GPU, with nothing compiled, nor a compiler."""
    modules: dict[str, Any] = {
        "flashinfer.jit.env": SimpleNamespace(FLASHINFER_AOT_DIR=tmp_path / "aot", FLASHINFER_JIT_DIR=tmp_path / "jit"),
        "flashinfer.jit.attention.modules": SimpleNamespace(
            get_batch_prefill_uri=lambda backend, *key: f"{backend}_{key[4]}_window_{key[7]}_cap_{key[8]}"
        ),
    }
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
    monkeypatch.setattr(library, "load", fake_flashinfer)
    monkeypatch.setattr(shutil, "which", lambda _: None)
    return tmp_path


def test_an_old_gpu_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (7, 5))
    told = library.why_unavailable(CUDA)
    assert told == "FlashInfer needs a GPU of compute capability 8.0 or more, and this one has 7.5"


def test_a_failed_import_is_told_of(hopper: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def load() -> None:
        raise ImportError("No module named 'tvm_ffi'")

    monkeypatch.setattr(library, "load", load)
    told = library.why_unavailable(CUDA)
    assert told == "FlashInfer cannot be imported (No module named 'tvm_ffi'); docs/gpu.md says what it needs"


def test_it_needs_a_compiler_or_compiled_modules(hopper: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "nvcc or ninja is missing" in str(library.why_unavailable(CUDA))
    compiled_in(hopper / "aot", "any")
    assert library.why_unavailable(CUDA) is None


def test_a_compiler_is_enough(hopper: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    assert library.why_unavailable(CUDA) is None


@pytest.mark.parametrize("folder", ["aot", "jit"])
def test_slowly_compiled_kernels_are_used_where_they_are_compiled(hopper: Path, folder: str) -> None:
    compiled_in(hopper / folder, "fa3_128_window_False_cap_False")
    assert library._causal_backend(ModuleKey(torch.bfloat16, 128, False, False)) == "fa3"
    assert library._causal_backend(ModuleKey(torch.bfloat16, 128, True, False)) == "fa2"
    assert library._causal_backend(ModuleKey(torch.bfloat16, 64, False, False)) == "fa2"


def test_other_gpus_have_one_kind_of_kernels(hopper: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled_in(hopper / "jit", "fa3_128_window_False_cap_False")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (8, 9))
    assert library._causal_backend(ModuleKey(torch.bfloat16, 128, False, False)) == "fa2"


def test_a_worker_that_compiles_gives_signs_of_life(monkeypatch: pytest.MonkeyPatch) -> None:
    lines, told = list[str](), threading.Event()

    class Stderr(io.StringIO):
        def write(self, text: str) -> int:
            lines.append(text)
            told.set()
            return len(text)

    monkeypatch.setattr(compiling, "SECONDS_BETWEEN_LINES", 0.01)
    monkeypatch.setattr(sys, "stderr", Stderr())
    with compiling.telling_time("compiling kernels"):
        assert told.wait(HANG_SECONDS)
    assert "".join(lines).startswith("compiling kernels: 0 s\r")
    assert "".join(lines).endswith("compiling kernels: 0 s\n")


def test_kernels_that_do_not_compile_are_told_of(hopper: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: FlashInferAttention) -> None:
        raise RuntimeError("ninja: build stopped")

    monkeypatch.setattr(FlashInferAttention, "compile", fail)
    shape = KvShape(1, 2, 64, 16, torch.bfloat16)
    needed = Requirements(shape, 4, CPU, 4, (AttentionSpec(0.1),))
    with pytest.raises(ConfigError, match="cannot start: ninja: build stopped; choose another --attention"):
        choose._flashinfer(needed, KvCache(shape, 4, CPU))


def test_a_gpu_without_room_for_partial_results_is_told_of(hopper: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise torch.OutOfMemoryError("tried to allocate 895 MiB")

    monkeypatch.setattr(FlashInferAttention, "__init__", fail)
    shape = KvShape(1, 2, 64, 16, torch.bfloat16)
    needed = Requirements(shape, 4, CPU, 4, (AttentionSpec(0.1),))
    with pytest.raises(ConfigError, match="cannot start: tried to allocate 895 MiB; choose another --attention"):
        choose._flashinfer(needed, KvCache(shape, 4, CPU))
