"""A module of transformers on random rows, without its weights."""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Mapping
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

ROWS = (2, 3)
"""Sequences, and rows of each."""
FAR = 99_999_989
"""How far apart positions are: some code scales queries by them, from a place on that no short text reaches."""
STORED = 1 << 20
"""Random numbers are made so many at a time, as that takes longer than what is done with them."""
ANGLES = "position_embeddings"
"""How code of transformers calls the cosines and sines of a batch."""
CACHES = ("cache", "past_key_values")
"""How code of transformers calls the keys and values of earlier rows: by the first as of 5.24."""
NAMED = ("attention_mask", "position_ids", *CACHES, "use_cache", "output_attentions", "output_router_logits")
"""What else a module is given, and may not need."""


class Unlike(Exception):
    """A module is not what ours could stand for."""


class Given(nn.Module):
    """Stands for a part of a module: it remembers what it was given, and has its result in advance. Code may change
    either in place."""

    def __init__(self, result: Tensor) -> None:
        super().__init__()
        self.result, self.seen = result, list[Tensor]()

    def forward(self, rows: Tensor) -> Tensor:
        self.seen.append(rows.clone())
        return self.result.clone()


@cache
def _numbers(count: int) -> Tensor:
    return torch.randn(count, generator=torch.Generator().manual_seed(0))


class Random:
    """Random numbers, some of them large: what limits them is seen."""

    def __init__(self) -> None:
        self._used = 0

    def rows(self, *shape: int) -> Tensor:
        """Numbers float32 of any size, alike within a row."""
        sizes = torch.tensor([1e-2, 1.0, 3.0, 30.0, 1e3]).repeat(ROWS[0] * ROWS[1])[: ROWS[0] * ROWS[1]]
        return self.plain(*ROWS, *shape) * sizes.view(*ROWS, *[1] * len(shape))

    def plain(self, *shape: int) -> Tensor:
        """Numbers float32 of about 1."""
        first, self._used = self._used, self._used + math.prod(shape)
        return _numbers(-(-self._used // STORED) * STORED)[first : self._used].view(shape)

    def copy_of(self, module: nn.Module) -> nn.Module:
        """A module like this one, with random weights. Raises Unlike if it has more than those."""
        if any(True for _ in module.buffers()):
            raise Unlike
        made = copy.deepcopy(module).to_empty(device="cpu").float()
        for weight in made.parameters():
            weight.copy_(self.plain(*weight.shape))
        return made


def with_parts(module: Any, parts: Mapping[str, nn.Module]) -> Any:
    """The module with these parts in place of its own."""
    if module._parameters or module._buffers or parts.keys() != module._modules.keys():
        raise Unlike
    trial = copy.copy(module)
    trial._modules = dict(parts)
    return trial


def arguments(module: Any, angles: Any) -> dict[str, Any]:
    """What a forward of a model gives such a module beside rows. Raises Unlike if the module asks for more."""
    parameters = inspect.signature(module.forward).parameters.values()
    named = [each.name for each in parameters if each.kind is not each.VAR_KEYWORD]
    if not {*named[1:]} <= {*NAMED, ANGLES}:
        raise Unlike
    positions = torch.arange(math.prod(ROWS)).view(ROWS) * FAR
    given = {ANGLES: angles, "position_ids": positions, "attention_mask": None}
    given[next((name for name in CACHES if name in named), CACHES[-1])] = None
    return given if len(parameters) > len(named) else {name: given[name] for name in given if name in named}


def names_of(module: Any) -> list[str]:
    """The parameters of its forward."""
    return list(inspect.signature(module.forward).parameters)


def assert_equal(found: Any, expected: Tensor) -> None:
    """Raises Unlike if rows differ by more than what rounding in float32 makes of their largest number."""
    if not isinstance(found, Tensor) or found.shape != expected.shape:
        raise Unlike
    most = expected.abs().amax(-1, keepdim=True)
    if not ((found - expected).abs() <= 1e-5 * most + 1e-9).all():
        raise Unlike
