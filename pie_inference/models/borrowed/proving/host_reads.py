"""Finds what a forward reads back to the host, or copies from it: a CUDA graph cannot record that."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

READS: Mapping[Any, str] = {
    getattr(Tensor, name): name
    for name in ("item", "tolist", "cpu", "numpy", "__bool__", "__int__", "__float__", "__index__", "__contains__")
}
"""Functions of tensors whose results the host has."""

OPERATIONS = {
    "_local_scalar_dense",
    "_unique2",
    "bincount",
    "equal",
    "is_nonzero",
    "masked_select",
    "nonzero",
    "repeat_interleave.Tensor",
    "unique_consecutive",
    "unique_dim",
}
"""Operations whose shapes or results depend on numbers of the device."""

COPIES = {torch.tensor, torch.as_tensor, torch.asarray, torch.from_numpy, Tensor.new_tensor}
"""Functions that make tensors of what the host has."""

CHOICES = {Tensor.__getitem__, Tensor.__setitem__}
"""Functions that make tensors of lists of indices."""


class HostReads:
    """What a forward does with the host, in the order in which it does it."""

    def __init__(self) -> None:
        self.found: list[str] = []

    @contextmanager
    def watched(self) -> Iterator[None]:
        """What runs within is watched."""
        with _Functions(self.found), _Operations(self.found):
            yield


class _Functions(TorchFunctionMode):
    def __init__(self, found: list[str]) -> None:
        super().__init__()
        self._found = found

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, given: tuple[Any, ...] = (), more: dict[str, Any] | None = None
    ) -> Any:
        more = more or {}
        if function in READS:
            self._found.append(f"it reads numbers back ({READS[function]})")
        elif _copies(function, given, more):
            self._found.append(f"it copies numbers from the host ({function.__name__})")
        return function(*given, **more)


def _copies(function: Callable[..., Any], given: tuple[Any, ...], more: Mapping[str, Any]) -> bool:
    """Whether a function makes a tensor of the device of numbers of the host. A single number that stays on the host is
    an argument of kernels."""
    if function in CHOICES:
        index = given[1] if isinstance(given[1], tuple) else given[1:2]
        return any(isinstance(each, list) for each in index)
    if function not in COPIES or (given and isinstance(given[0], Tensor) and function is not Tensor.new_tensor):
        return False
    return function is Tensor.new_tensor or more.get("device") is not None or isinstance(given[0], (list, tuple))


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, found: list[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._found = found

    def __torch_dispatch__(
        self, operation: Any, types: Any, given: tuple[Any, ...] = (), more: dict[str, Any] | None = None
    ) -> Any:
        name = str(operation).removeprefix("aten.")
        masks = name.startswith("index") and any(
            isinstance(each, Tensor) and each.dtype == torch.bool
            for index in given[1:2]
            if isinstance(index, (list, tuple))
            for each in index
        )
        if masks or name in OPERATIONS or name.partition(".")[0] in OPERATIONS:
            self._found.append(f"shapes depend on numbers of the device ({name})")
        return operation(*given, **(more or {}))
