"""The adapters that are loaded, and which of them the rows of a batch have."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch

from ..device.tensors import upload
from ..errors import AdapterError, BatchError
from ..protocol import Array, Forward
from .files import ROOM, ModuleShape, Weights, common_name, read_adapter
from .lora import AdaptedLinear, Groups, Running

NONE = -1
"""The number of no adapter."""


class AdaptedLayers:
    """The layers of a model that take adapters. They are all there once the model is loaded."""

    def __init__(self) -> None:
        self.running = Running()
        self.all: list[AdaptedLinear] = []

    def shapes(self) -> dict[str, ModuleShape]:
        """All modules by their common names, with their sizes over all ranks."""
        return {
            common_name(module.name): ModuleShape(layer.ins, module.total)
            for layer in self.all
            for module in layer.modules
        }


class Adapters:
    """Adapters by number: at most `most`, and `most_bytes` of memory on this rank. A number is never used twice, so one
    that is not loaded any more is known as such."""

    def __init__(
        self, layers: AdaptedLayers, dtype: torch.dtype, device: torch.device, most: int, most_bytes: int
    ) -> None:
        self._layers = layers
        # Small products in bfloat16 take CPUs ten times as long as in float32.
        self._dtype = torch.promote_types(dtype, torch.float32) if device.type == "cpu" else dtype
        self._device = device
        self._most = most
        self._most_bytes = most_bytes
        self._loaded: dict[int, int] = {}  # bytes

    @property
    def nbytes(self) -> int:
        """Memory of all adapters."""
        return sum(self._loaded.values())

    def load(self, number: int, folder: Path) -> int:
        """Loads an adapter; returns the bytes that it takes. Nothing has changed if it raises AdapterError."""
        if number in self._loaded:
            return self._loaded[number]
        if len(self._loaded) >= self._most:
            raise AdapterError(f"{self._most} adapters are loaded, the most of this server (--max-adapters): drop one")
        room = max(0, self._most_bytes - self.nbytes) // self._dtype.itemsize
        try:
            with torch.inference_mode():
                return self._install(number, read_adapter(folder, self._layers.shapes(), room))
        except (RuntimeError, MemoryError, OSError) as error:  # RuntimeError: no memory of the device is left
            self.drop(number)
            raise AdapterError(f"{folder}: cannot be loaded: {error}") from None

    def _install(self, number: int, weights: Weights) -> int:
        made = []
        for layer in self._layers.all:
            names = {module.name: common_name(module.name) for module in layer.modules}
            own = {name: weights[common] for name, common in names.items() if common in weights}
            if own:
                made.append((layer, layer.prepare(own, self._dtype, self._device)))
        nbytes = sum(lora.nbytes for _, lora in made)
        if self.nbytes + nbytes > self._most_bytes:
            raise AdapterError(f"{nbytes} bytes are more than there is room for: {ROOM}")
        for layer, lora in made:
            layer.loras[number] = lora
        self._loaded[number] = nbytes
        return self._loaded[number]

    def drop(self, number: int) -> None:
        """Forgets an adapter. Batches that are under way on a GPU keep its memory until they end. Idempotent."""
        self._loaded.pop(number, None)
        for layer in self._layers.all:
            layer.loras.pop(number, None)

    @contextmanager
    def beside(self, batch: Forward) -> Iterator[None]:
        """Runs the layers with the adapters of a batch. Raises BatchError."""
        if batch.adapters is None:
            yield
            return
        self._layers.running.groups = self._groups(batch.adapters, np.diff(batch.q_indptr))
        try:
            yield
        finally:
            self._layers.running.groups = None

    def _groups(self, adapters: Array, lengths: Array) -> Groups | None:
        """`lengths`: rows of each sequence."""
        if len(adapters) != len(lengths):
            raise BatchError(f"adapters has {len(adapters)} elements for {len(lengths)} sequences")
        if not self._loaded.keys() >= set(adapters.tolist()) - {NONE}:
            raise BatchError("the adapter was dropped, or could not be loaded again: see available-adapters")
        of_rows = np.repeat(adapters, lengths)
        (rows,) = (of_rows != NONE).nonzero()
        if not len(rows):
            return None
        rows = rows[np.argsort(of_rows[rows], kind="stable")]
        numbers, begins = np.unique(of_rows[rows], return_index=True)
        ends = [*begins.tolist()[1:], len(rows)]
        parts = list(zip(numbers.tolist(), begins.tolist(), ends, strict=True))
        return Groups(self._indices(rows), parts)

    def _indices(self, rows: Array) -> slice | torch.Tensor:
        if (np.diff(rows) == 1).all():
            return slice(int(rows[0]), int(rows[-1]) + 1)
        return upload(torch.from_numpy(rows.astype(np.int64)), self._device)
