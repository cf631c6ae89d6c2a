"""Routers of experts that multiply by a matrix of their own: by torch the last bits of a row depend on how many rows
there are, and with them which expert is chosen."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from ....ops.cpu_ops import CpuOps
from ....ops.interface import Linear, Ops

NAME = re.compile("Router|Gate$")
"""What is in the names of their classes."""


def take_routers(model: Any, ops: Ops) -> None:
    """Makes their products ours where the compiled kernels for CPUs serve. The model has its weights."""
    if not isinstance(ops, CpuOps):
        return
    routers = [module for module in model.modules() if NAME.search(type(module).__name__)]
    for module in (part for router in routers for part in router.modules()):
        weight = module._parameters.get("weight")
        if weight is not None and weight.dim() == 2 and not isinstance(module, nn.Embedding):
            del module._parameters["weight"]
            module.weight = OwnMatrix(weight.detach(), weight.dtype, module._parameters.get("bias"), ops)


class OwnMatrix:
    """Stands for the weight of a module. It is a tensor in all that code does with it, but for products with rows."""

    def __init__(self, stored: Tensor, dtype: torch.dtype, bias: Tensor | None, ops: CpuOps) -> None:
        """`dtype`: that of the tensor; `bias`: the module's."""
        self._stored, self._dtype, self._bias, self._ops = stored, dtype, bias, ops
        self._wide: OwnMatrix | None = None
        self._multiply: Linear | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tensor, name)

    @property
    def _tensor(self) -> Tensor:
        return self._stored.to(self._dtype)

    def float(self) -> OwnMatrix:
        """In float32."""
        if self._dtype == torch.float32:
            return self
        self._wide = self._wide or OwnMatrix(self._stored, torch.float32, None, self._ops)
        return self._wide

    def type(self, dtype: torch.dtype) -> Any:
        """In another number format."""
        return self.float() if dtype == torch.float32 else self._tensor.type(dtype)

    def _times(self, rows: Tensor, bias: Tensor | None = None) -> Tensor:
        if rows.dtype != self._dtype or bias is not self._bias:
            return F.linear(rows, self._tensor, bias)
        self._multiply = self._multiply or self._ops.linear_in(self._dtype, self._stored, bias)
        return self._multiply(rows)

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, given: Sequence[Any] = (), more: dict[str, Any] | None = None
    ) -> Any:
        if function is F.linear and isinstance(given[1], cls):
            return given[1]._times(given[0], *given[2:], **(more or {}))
        given, more = tree_map(lambda each: each._tensor if isinstance(each, cls) else each, (given, more or {}))
        return function(*given, **more)
