"""Whether Triton's kernels can be used, and what a user is told where they cannot."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pie_inference.assembly.kernels import choose_ops
from pie_inference.device import triton_support
from pie_inference.ops.torch_ops import TorchOps
from testing.triton_interpreter import Interpreter

CUDA, CPU = torch.device("cuda"), torch.device("cpu")
NO_HEADERS = subprocess.CalledProcessError(1, ["/usr/bin/gcc", "/tmp/x/cuda_utils.c", "-O3"])


class OutOfResources(Exception):
    """As Triton's errors, it is no RuntimeError."""


@pytest.fixture(autouse=True)
def hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
    triton_support._why_broken.cache_clear()


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (NO_HEADERS, "/usr/bin/gcc failed, and has said why above"),
        (RuntimeError("Failed to find C compiler"), "RuntimeError: Failed to find C compiler"),
        (AssertionError("libcuda.so cannot found!"), "AssertionError: libcuda.so cannot found!"),
        (PermissionError("/.triton"), "PermissionError: /.triton"),
        (OutOfResources("shared memory"), "OutOfResources: shared memory"),
    ],
)
def test_a_machine_on_which_no_kernel_runs_is_told_of_and_torch_serves(
    error: Exception, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def jit(_: Any) -> Any:
        raise error

    monkeypatch.setitem(sys.modules, "triton", SimpleNamespace(jit=jit, __spec__=SimpleNamespace()))
    assert triton_support.why_unavailable(CUDA) == (
        f"its kernels do not compile or run here ({told}); docs/gpu.md says what it needs"
    )
    assert isinstance(choose_ops("auto", CUDA, torch.float32, None), TorchOps)


def test_the_kernel_that_is_tried_is_one(interpreter: Interpreter) -> None:
    assert interpreter.call(triton_support._why_broken, CPU) is None
