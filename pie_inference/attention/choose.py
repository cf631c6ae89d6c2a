"""Chooses the `AttentionBackend`: the one that the operator asked for, else the fastest that can serve.

Each backend has a `Candidate`. Its functions import heavy and optional dependencies, so a candidate that is never asked
costs nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from ..cpu_kernels.library import Library
from ..device import triton_support
from ..errors import ConfigError
from ..kv_cache.pages import KvCache, KvShape
from ..options.compiling import telling_time
from .interface import AttentionBackend, AttentionSpec

log = logging.getLogger("pie.attention")


@dataclass(frozen=True)
class Requirements:
    """The cache, the heads and the layers that a backend must serve."""

    shape: KvShape
    num_pages: int
    device: torch.device
    num_heads: int  # of this rank
    specs: Sequence[AttentionSpec]  # of each layer
    library: Library | None = None  # the compiled kernels for CPUs; None: there are none


@dataclass(frozen=True)
class Candidate:
    """A backend that may serve."""

    devices: tuple[str, ...]  # types of torch devices that it runs on
    why_unsuitable: Callable[[Requirements], str | None]  # the end of a sentence; None: it can serve
    make: Callable[[Requirements, KvCache], AttentionBackend]


def _cpu_unsuitable(needed: Requirements) -> str | None:
    from .cpu.pages import why_unsuitable

    if needed.library is None:
        return "there are no compiled kernels here"
    return why_unsuitable(needed.shape, needed.num_pages)


def _cpu(needed: Requirements, cache: KvCache) -> AttentionBackend:
    from .cpu.pages import CpuAttention

    assert needed.library is not None
    return CpuAttention(cache, needed.num_heads, needed.specs, needed.library)


def _torch(needed: Requirements, cache: KvCache) -> AttentionBackend:
    from .torch.pages import TorchAttention

    return TorchAttention(cache, needed.num_heads, needed.specs)


def _sinks(needed: Requirements) -> str | None:
    return "its kernels have no sinks" if any(spec.sinks for spec in needed.specs) else None


def _flashinfer_unsuitable(needed: Requirements) -> str | None:
    from ..device import flashinfer_library as library

    reason = _sinks(needed) or library.why_no_attention(needed.shape.dtype, needed.shape.head_dim)
    return reason or library.why_unavailable(needed.device)


def _flashinfer(needed: Requirements, cache: KvCache) -> AttentionBackend:
    from ..device import flashinfer_library as library
    from .flashinfer.pages import FlashInferAttention

    try:
        backend = FlashInferAttention(cache, needed.num_heads, needed.specs, library.load())
        with telling_time("compiling FlashInfer's kernels of attention"):
            backend.compile()
    except Exception as error:  # of compilers, files and drivers, of which each has its own
        raise ConfigError(f"FlashInfer's attention cannot start: {error}; choose another --attention") from error
    return backend


def _triton_unsuitable(needed: Requirements) -> str | None:
    head_dim = needed.shape.head_dim
    if needed.shape.dtype == torch.float64:
        return "Triton's kernels compute in float32"
    if (reason := _sinks(needed)) is not None:
        return reason
    return f"head_dim {head_dim} is more than 256" if head_dim > 256 else triton_support.why_unavailable(needed.device)


def _triton(needed: Requirements, cache: KvCache) -> AttentionBackend:
    from .triton.pages import TritonAttention

    try:
        backend = TritonAttention(cache, needed.num_heads, needed.specs)
        backend.compile()
    except Exception as error:  # of compilers, files and drivers, of which each has its own
        raise ConfigError(f"Triton's attention cannot start: {error}; choose another --attention") from error
    return backend


CANDIDATES: Mapping[str, Candidate] = {
    "triton": Candidate(("cuda", "cpu"), _triton_unsuitable, _triton),
    "flashinfer": Candidate(("cuda",), _flashinfer_unsuitable, _flashinfer),
    "cpu": Candidate(("cpu",), _cpu_unsuitable, _cpu),
    "torch": Candidate(("cpu", "cuda"), lambda _: None, _torch),
}
"""All candidates, by their names in `WorkerOptions.attention`, the fastest first. On an H200, Triton's decode of short
contexts takes less time than FlashInfer's, which the host plans before each wave (docs/gpu.md)."""


def choose_attention(name: str, needed: Requirements, cache: KvCache) -> AttentionBackend:
    """Makes the backend `name`, one of `WorkerOptions.attention`. Raises ConfigError if it cannot serve. With `auto`, a
    backend that fails to start (its kernels do not compile) is logged with the reason, and the next one is tried."""
    if name != "auto":
        return CANDIDATES[name_of_choice(name, needed)].make(needed, cache)
    *others, last = (known for known, each in CANDIDATES.items() if needed.device.type in each.devices)
    for known in others:
        reason = CANDIDATES[known].why_unsuitable(needed)
        if reason is None:
            try:
                return CANDIDATES[known].make(needed, cache)
            except ConfigError as error:
                reason = str(error)
        elif needed.device.type == "cpu":
            continue  # a GPU without its fastest kernels is worth a word
        log.warning("attention %s cannot serve: %s", known, reason)
    return CANDIDATES[last].make(needed, cache)


def name_of_choice(name: str, needed: Requirements) -> str:
    """The name of the backend that `choose_attention` would make. Raises ConfigError as it does."""
    if name == "auto":
        return next(name for name, each in CANDIDATES.items() if _why_unsuitable(each, needed) is None)
    reason = _why_unsuitable(CANDIDATES[name], needed)
    if reason is not None:
        raise ConfigError(f"--attention {name}: {reason}")
    return name


def _why_unsuitable(candidate: Candidate, needed: Requirements) -> str | None:
    if needed.device.type not in candidate.devices:
        return f"it runs on {' and '.join(candidate.devices)}, not on {needed.device.type}"
    return candidate.why_unsuitable(needed)
