"""Parts of a module of transformers that are made ours once its weights are there."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...ops.interface import Ops


class OwnNorm(nn.Module):
    """Stands for a root mean square norm."""

    def __init__(self, ops: Ops, weight: Tensor, eps: float) -> None:
        super().__init__()
        self._ops, self.weight, self._eps = ops, weight, eps

    def forward(self, rows: Tensor) -> Tensor:
        return self._ops.rms_norm(rows, self.weight, self._eps)


def take_norms(model: Any, ops: Ops) -> None:
    """Makes norms ours that prove equal to ours on random rows in float32, one of each class and size."""
    proved: dict[tuple[type, int, float], float | None] = {}
    for name, module in list(model.named_modules()):
        weight, eps = getattr(module, "weight", None), getattr(module, "variance_epsilon", getattr(module, "eps", None))
        if not type(module).__name__.endswith("RMSNorm") or not isinstance(weight, Tensor) or weight.dim() != 1:
            continue
        if not isinstance(eps, float):
            continue
        key = (type(module), len(weight), eps)
        if key not in proved:
            proved[key] = _added(module, len(weight), eps)
        added = proved[key]
        if added is not None:
            wide = torch.promote_types(weight.dtype, torch.float32)
            model.set_submodule(name, OwnNorm(ops, (weight.detach().to(wide) + added).to(weight.dtype), eps))


def _added(module: nn.Module, size: int, eps: float) -> float | None:
    """What a norm adds to its weight, 0 or 1; None: it is another function than ours."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(1, 4, size, generator=generator) * torch.tensor([1e-3, 1.0, 3.0, 100.0])[:, None]
    trial = copy.deepcopy(module).float().cpu()
    weight = torch.randn(size, generator=generator)
    trial.weight = nn.Parameter(weight, requires_grad=False)
    with torch.no_grad():
        expected = trial(rows)
        for added in (0.0, 1.0):
            found = F.rms_norm(rows, (size,), weight + added, eps)
            if expected.shape == found.shape and torch.allclose(expected, found, rtol=1e-5, atol=1e-6):
                return added
    return None


def freeze_positions(model: Any, context: int, device: torch.device) -> None:
    """Makes rotations that follow the longest text of a batch those of the served context, for all texts. So no
    result depends on what else runs."""
    for module in model.modules():
        kinds = getattr(module, "rope_type", None)
        by_layer = kinds if isinstance(kinds, dict) else {None: kinds}
        following = [layer for layer, kind in by_layer.items() if kind and ("dynamic" in kind or kind == "longrope")]
        for layer in following:
            given = {} if layer is None else {"layer_type": layer}
            module(torch.zeros(1, 1, 1, device=device), torch.tensor([[context - 1]], device=device), **given)
        if following:
            still = dict.fromkeys(by_layer, "default")
            module.rope_type = still if isinstance(kinds, dict) else "default"
