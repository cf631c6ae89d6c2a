"""FlashInfer: its only importer, and the one place that knows how its versions differ.

The code is written against 0.6.18 and 0.7.4, which agree in the calls that we make
(`tests/inference/attention/flashinfer_signatures.json` records them). Modules that are not compiled yet are compiled at
first use, which needs nvcc and ninja (docs/gpu.md).
"""

from __future__ import annotations

import functools
import importlib
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

HEAD_DIMS = (64, 128, 256)
"""Sizes of heads for which FlashInfer has every kind of attention kernel."""

DTYPES = (torch.float16, torch.bfloat16)

DECODE_GROUPS = (1, 2, 3, 4, 6, 8)
"""Numbers of query heads per key-value head for which all versions have a decode kernel without tensor cores."""

TENSOR_CORE_GROUP = 4
"""Least number of query heads per key-value head for which decode uses tensor cores: these have enough rows to fill
them. FlashInfer's documentation advises it; we have not measured it."""


@dataclass(frozen=True)
class FlashInfer:
    """The part of FlashInfer that we use. Tests replace it with a torch implementation."""

    version: str
    decode_wrapper: Callable[..., Any]  # BatchDecodeWithPagedKVCacheWrapper
    prefill_wrapper: Callable[..., Any]  # BatchPrefillWithPagedKVCacheWrapper
    append: Callable[..., None]  # append_paged_kv_cache
    causal_backend: Callable[[ModuleKey], str]  # for prefill without masks: "fa2" or "fa3"


@dataclass(frozen=True)
class ModuleKey:
    """The properties that a compiled attention module depends on."""

    dtype: torch.dtype
    head_dim: int
    has_window: bool
    has_soft_cap: bool


@functools.cache
def load() -> FlashInfer:
    """Imports FlashInfer. Raises ImportError if it or one of its dependencies is missing or unusable."""
    os.environ.setdefault("FLASHINFER_USE_CUDA_NORM", "1")  # else it imports kernels that need a package of 92 MB
    library = importlib.import_module("flashinfer")
    return FlashInfer(
        version=library.__version__,
        decode_wrapper=library.BatchDecodeWithPagedKVCacheWrapper,
        prefill_wrapper=library.BatchPrefillWithPagedKVCacheWrapper,
        append=library.append_paged_kv_cache,
        causal_backend=_causal_backend,
    )


def why_unavailable(device: torch.device) -> str | None:
    """Why FlashInfer cannot be used at all, as the end of a sentence; None: it can."""
    major, minor = torch.cuda.get_device_capability(device)
    if major < 8:
        return f"FlashInfer needs a GPU of compute capability 8.0 or more, and this one has {major}.{minor}"
    try:
        load()
    except (ImportError, RuntimeError, OSError, AttributeError) as error:
        return f"FlashInfer cannot be imported ({error}); docs/gpu.md says what it needs"
    if not _can_compile() and not any(_folders()):
        return "FlashInfer's kernels are not compiled yet, and nvcc or ninja is missing; install both (docs/gpu.md)"
    return None


def _can_compile() -> bool:
    homes = [os.environ.get(name) for name in ("CUDA_HOME", "CUDA_PATH")]
    folders = [Path(home) for home in (*homes, "/usr/local/cuda") if home]
    return shutil.which("ninja") is not None and (
        shutil.which("nvcc") is not None or any((folder / "bin" / "nvcc").exists() for folder in folders)
    )


def _folders() -> Iterator[Path]:
    """The folders of compiled modules, one for each: those that FlashInfer brought, and those compiled here."""
    environment = importlib.import_module("flashinfer.jit.env")
    for parent in (environment.FLASHINFER_AOT_DIR, environment.FLASHINFER_JIT_DIR):
        if Path(parent).is_dir():
            yield from Path(parent).iterdir()


def why_no_attention(dtype: torch.dtype, head_dim: int) -> str | None:
    """Why FlashInfer cannot attend, as the end of a sentence; None: it can."""
    if dtype not in DTYPES:
        return f"FlashInfer supports float16 and bfloat16, not {str(dtype).removeprefix('torch.')}"
    if head_dim not in HEAD_DIMS:
        return f"FlashInfer supports heads of {', '.join(map(str, HEAD_DIMS))} dimensions, not of {head_dim}"
    return None


def decodes_with_tensor_cores(group: int) -> bool:
    """Whether decode uses tensor cores for `group` query heads per key-value head."""
    return group not in DECODE_GROUPS or group >= TENSOR_CORE_GROUP


def _causal_backend(key: ModuleKey) -> str:
    """ "fa3" on Hopper if its module is compiled already, else "fa2": compiling "fa3" takes minutes, "fa2" seconds."""
    if torch.cuda.get_device_capability()[0] != 9:
        return "fa2"
    return "fa3" if _has_fa3(key) else "fa2"


def _has_fa3(key: ModuleKey) -> bool:
    modules = importlib.import_module("flashinfer.jit.attention.modules")
    dtype, dim = key.dtype, key.head_dim
    flags = (0, key.has_window, key.has_soft_cap, False)  # position encoding, ..., half precision of scores
    name = modules.get_batch_prefill_uri("fa3", dtype, dtype, dtype, torch.int32, dim, dim, *flags)
    return any(folder.name == name and (folder / f"{name}.so").exists() for folder in _folders())
