"""Layers by transformers' code that keep the state of a text: which they are, and how those of Mamba 1 go on from it by
several tokens at once."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

KEEPING = {"update_conv_state", "update_recurrent_state", "set_linear_cache"}
"""Methods of caches by which code keeps the state of a text."""

SCAN = "mamba_selective_scan"
"""The function by which code of Mamba 1 runs several tokens. It begins with zeros."""

_begins: ContextVar[Iterator[Tensor] | None] = ContextVar("_begins", default=None)
"""The states with which the next scans begin; None: zeros."""


def keeps_state(module: Any) -> bool:
    """Whether the code of a module itself keeps the state of a text."""
    return not KEEPING.isdisjoint(names_of(module))


def names_of(module: Any) -> Sequence[str]:
    """The names of functions and methods that the code of a module itself uses."""
    names: Sequence[str] = inspect.unwrap(type(module).forward).__code__.co_names
    return names


def begin_scans_with_states(model: Any) -> None:
    """Makes layers of Mamba 1 go on from the state of a text by several tokens at once."""
    for module in filter(keeps_state, model.modules()):
        code = sys.modules[type(module).__module__]
        scan = getattr(code, SCAN, None)
        if scan is None:
            continue
        if not isinstance(getattr(scan, "whole", scan), _Scan):
            setattr(code, SCAN, _Scan(scan))
        module.forward = partial(_going_on, module.forward, module.layer_idx)


def _going_on(forward: Callable[..., Tensor], layer: int, *given: Any, **more: Any) -> Tensor:
    """The forward of a layer, whose scans begin with its state: one after the other with that of each head, if heads
    have states of their own."""
    cache = more.get("cache", more.get("cache_params"))  # the first as of transformers 5.24
    state = None if cache is None else cache.get_recurrent_state(layer)
    begins = None if state is None else iter([state] if state.dim() == 3 else state.unbind(1))
    before = _begins.set(begins)
    try:
        return forward(*given, **more)
    finally:
        _begins.reset(before)


class _Scan:
    """Mamba's scan (Gu and Dao 2023, algorithm 2), as transformers' code calls it."""

    def __init__(self, from_zeros: Callable[..., Any]) -> None:
        self._from_zeros = from_zeros
        self.__signature__ = inspect.signature(from_zeros)

    def __call__(self, rows: Tensor, steps: Tensor, *given: Any, **more: Any) -> Any:
        begins = _begins.get()
        if begins is None:
            return self._from_zeros(rows, steps, *given, **more)
        return _scan(next(begins), rows, steps, *given, **more)


def _scan(
    state: Tensor,
    rows: Tensor,
    steps: Tensor,
    decay: Tensor,
    ins: Tensor,
    outs: Tensor,
    D: Tensor,
    z: Tensor,
    delta_bias: Tensor,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    """The scan that begins with a state [batch, channels, N]. rows, steps and gates `z`: [batch, channels, T]; decay:
    [channels, N]; ins and outs: [batch, N, T]; D and delta_bias: [channels]. Returns [batch, channels, T], and the last
    state."""
    steps, found = F.softplus(steps + delta_bias.to(steps.dtype)[:, None]), []
    for step, row, taken, told in zip(*(torch.split(each, 1, -1) for each in (steps, rows, ins, outs)), strict=True):
        state = torch.exp(decay * step) * state + step * taken.transpose(1, 2).float() * row.float()
        found.append(state.to(rows.dtype) @ told)
    return (torch.cat(found, -1) + rows * D[:, None]) * F.silu(z), state
