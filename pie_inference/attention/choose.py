"""Which `AttentionBackend` serves: the one that was asked for, else the fastest that can.

A backend is one `Candidate`. Heavy and optional dependencies are imported in its functions, so asking costs nothing
where a better one is found first.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..cpu_kernels.library import Library
from ..device import triton_support
from ..errors import ConfigError
from ..kv_cache.pages import KvCache
from .interface import AttentionBackend, AttentionSpec

log = logging.getLogger("pie.attention")


@dataclass(frozen=True)
class Wanted:
    """What a backend is to serve."""

    cache: KvCache
    num_heads: int  # of this rank
    specs: Sequence[AttentionSpec]  # of each layer
    library: Library | None = None  # the compiled kernels for CPUs, if there are any


@dataclass(frozen=True)
class Candidate:
    """A backend that may serve."""

    devices: tuple[str, ...]  # types of torch devices that it runs on
    obstacle: Callable[[Wanted], str | None]  # why it cannot serve, as the end of a sentence; None: it can
    make: Callable[[Wanted], AttentionBackend]


def _none(_: Wanted) -> None:
    """Nothing stands in the way."""


def _cpu_obstacle(wanted: Wanted) -> str | None:
    from .cpu.pages import obstacle

    return "there are no compiled kernels here" if wanted.library is None else obstacle(wanted.cache)


def _cpu(wanted: Wanted) -> AttentionBackend:
    from .cpu.pages import CpuAttention

    assert wanted.library is not None
    return CpuAttention(wanted.cache, wanted.num_heads, wanted.specs, wanted.library)


def _torch(wanted: Wanted) -> AttentionBackend:
    from .torch.pages import TorchAttention

    return TorchAttention(wanted.cache, wanted.num_heads, wanted.specs)


def _flashinfer_obstacle(wanted: Wanted) -> str | None:
    from ..device import flashinfer_library as library

    shape = wanted.cache.shape
    return library.attention_obstacle(shape.dtype, shape.head_dim) or library.obstacle(wanted.cache.device)


def _flashinfer(wanted: Wanted) -> AttentionBackend:
    from ..device import flashinfer_library as library
    from .flashinfer.pages import FlashInferAttention

    backend = FlashInferAttention(wanted.cache, wanted.num_heads, wanted.specs, library.load())
    try:
        backend.compile()
    except RuntimeError as error:
        raise ConfigError(
            f"FlashInfer's attention kernels cannot be compiled: {error}; choose another --attention"
        ) from error
    return backend


def _triton_obstacle(wanted: Wanted) -> str | None:
    head_dim = wanted.cache.shape.head_dim
    return f"head_dim {head_dim} is more than 256" if head_dim > 256 else triton_support.obstacle(wanted.cache.device)


def _triton(wanted: Wanted) -> AttentionBackend:
    from .triton.pages import TritonAttention

    return TritonAttention(wanted.cache, wanted.num_heads, wanted.specs)


CANDIDATES: Mapping[str, Candidate] = {
    "flashinfer": Candidate(("cuda",), _flashinfer_obstacle, _flashinfer),
    "triton": Candidate(("cuda", "cpu"), _triton_obstacle, _triton),
    "cpu": Candidate(("cpu",), _cpu_obstacle, _cpu),
    "torch": Candidate(("cpu", "cuda"), _none, _torch),
}
"""By their names in `WorkerOptions.attention`, the fastest first."""


def choose_attention(name: str, wanted: Wanted) -> AttentionBackend:
    """`name` is one of `WorkerOptions.attention`. Raises ConfigError where what was asked for by name cannot serve;
    what `auto` finds but cannot make (its kernels do not compile) gives way to the next, with the reason in the log."""
    if name != "auto":
        return CANDIDATES[name_of_choice(name, wanted)].make(wanted)
    *others, last = _able(wanted)
    for known in others:
        try:
            return CANDIDATES[known].make(wanted)
        except ConfigError as error:
            log.warning("attention %s cannot serve: %s", known, error)
    return CANDIDATES[last].make(wanted)


def name_of_choice(name: str, wanted: Wanted) -> str:
    """The backend that `choose_attention` makes. Raises ConfigError as it does."""
    if name == "auto":
        return next(_able(wanted))
    obstacle = _obstacle(CANDIDATES[name], wanted)
    if obstacle is not None:
        raise ConfigError(f"--attention {name}: {obstacle}")
    return name


def _able(wanted: Wanted) -> Iterator[str]:
    return (name for name, each in CANDIDATES.items() if _obstacle(each, wanted) is None)


def _obstacle(candidate: Candidate, wanted: Wanted) -> str | None:
    device = wanted.cache.device.type
    if device not in candidate.devices:
        return f"it runs on {' and '.join(candidate.devices)}, not on {device}"
    return candidate.obstacle(wanted)
