"""The adapters that are loaded, and which of them the rows of a batch have."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch

from ..device.tensors import upload
from ..errors import AdapterError, BatchError
from ..protocol import Array, Forward
from .files import ROOM, ModuleShape, common_name, read_adapter
from .folder import AdapterFolder
from .groups import NO_SLOT, Groups
from .lora import AdaptedLinear, Running
from .products.interface import Lora, Products

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

    @property
    def form(self) -> tuple[int, ...]:
        """What kernels that were recorded depend on; it changes when an adapter changes a layer that none has changed
        before, or has more features than any before."""
        return tuple(layer.loras.most_features for layer in self.all)


@dataclass(frozen=True)
class _Loaded:
    slot: int
    nbytes: int


@dataclass(frozen=True)
class Prepared:
    """An adapter that can be put in."""

    loras: Mapping[int, Lora]  # by the place of the layer
    nbytes: int


class Adapters:
    """Adapters by number: at most `most`, and `most_bytes` of memory on this rank. A number is never used twice, so one
    that is not loaded any more is known as such."""

    def __init__(
        self,
        layers: AdaptedLayers,
        products: Products,
        dtype: torch.dtype,
        device: torch.device,
        most: int,
        most_bytes: int,
    ) -> None:
        self.layers = layers
        self.most = most
        # Small products in bfloat16 take CPUs ten times as long as in float32.
        self._dtype = torch.promote_types(dtype, torch.float32) if device.type == "cpu" else dtype
        self._device = device
        self._most_bytes = most_bytes
        self._loaded: dict[int, _Loaded] = {}
        self._free = list(range(most))
        self._tables = torch.zeros(len(layers.all), 3, most, dtype=torch.int64, device=device)
        layers.running.products = products
        for layer, table in zip(layers.all, self._tables, strict=True):
            layer.loras.table = table

    @property
    def numbers(self) -> tuple[int, ...]:
        """Those that are loaded."""
        return tuple(self._loaded)

    @property
    def nbytes(self) -> int:
        """Memory of all adapters."""
        return sum(one.nbytes for one in self._loaded.values())

    @property
    def room(self) -> int:
        """Numbers of which adapters may still consist."""
        return max(0, self._most_bytes - self.nbytes) // self._dtype.itemsize

    def prepare(self, folder: AdapterFolder, room: int) -> Prepared:
        """Reads an adapter of at most `room` numbers, and checks it; on any thread. Raises AdapterError, and nothing
        else, whatever is in the folder."""
        try:
            weights = read_adapter(folder, self.layers.shapes(), room)
            loras = {}
            for place, layer in enumerate(self.layers.all):
                names = {module.name: common_name(module.name) for module in layer.modules}
                own = {name: weights[common] for name, common in names.items() if common in weights}
                if own:
                    loras[place] = layer.prepare(own, self._dtype, self._device)
        except AdapterError:
            raise
        except (RuntimeError, MemoryError) as error:  # RuntimeError: no memory of the device is left
            raise AdapterError(f"it cannot be loaded: {error}") from None
        except Exception as error:  # what nobody has foreseen of a stranger's files
            traceback.print_exc()
            raise AdapterError(f"it cannot be loaded: {type(error).__name__}; the server's log says more") from None
        return Prepared(loras, sum(lora.nbytes for lora in loras.values()))

    def install(self, number: int, prepared: Prepared) -> int:
        """Puts an adapter in, for the batches that come; returns the bytes that it takes. Nothing has changed if it
        raises AdapterError."""
        if number in self._loaded:
            return self._loaded[number].nbytes
        if not self._free:
            raise AdapterError(f"{self.most} adapters are loaded, the most of this server (--max-adapters): drop one")
        if self.nbytes + prepared.nbytes > self._most_bytes:
            raise AdapterError(f"{prepared.nbytes} bytes are more than there is room for: {ROOM}")
        slot = self._free.pop(0)
        self._write_tables(slot, prepared.loras)
        for place, lora in prepared.loras.items():
            _keep_for_waves(lora)
            self.layers.all[place].loras.put(slot, lora)
        self._loaded[number] = _Loaded(slot, prepared.nbytes)
        return prepared.nbytes

    def _write_tables(self, slot: int, loras: Mapping[int, Lora]) -> None:
        columns = [[0, 0, 0]] * len(self._tables)
        for place, lora in loras.items():
            columns[place] = [lora.down.data_ptr(), lora.up.data_ptr(), len(lora.down)]
        with torch.inference_mode():
            self._tables[:, :, slot] = upload(torch.tensor(columns, dtype=torch.int64).view(-1, 3), self._device)

    def drop(self, number: int) -> None:
        """Forgets an adapter. Batches that are under way on a GPU keep its memory until they end. Idempotent."""
        dropped = self._loaded.pop(number, None)
        if dropped is None:
            return
        self._write_tables(dropped.slot, {})
        for layer in self.layers.all:
            layer.loras.by_slot.pop(dropped.slot, None)
        self._free.append(dropped.slot)

    @contextmanager
    def beside(self, batch: Forward) -> Iterator[None]:
        """Runs the layers with the adapters of a batch. Raises BatchError."""
        if batch.adapters is None:
            yield
            return
        slots = self._slots(batch.adapters, np.diff(batch.q_indptr))
        with self.layers.running.using(Groups.of(slots, self._device)):
            yield

    def _slots(self, adapters: Array, lengths: Array) -> Array:
        """The slot of each row; `lengths`: rows of each sequence."""
        if len(adapters) != len(lengths):
            raise BatchError(f"adapters has {len(adapters)} elements for {len(lengths)} sequences")
        numbers, places = np.unique(adapters, return_inverse=True)
        if not self._loaded.keys() >= set(numbers.tolist()) - {NONE}:
            raise BatchError("the adapter was dropped, or could not be loaded again: ask which the model has")
        slots = [NO_SLOT if number == NONE else self._loaded[number].slot for number in numbers.tolist()]
        return np.repeat(np.array(slots, np.int32)[places], lengths)


def _keep_for_waves(lora: Lora) -> None:
    """Its memory on a GPU, which is of another stream, is not used again before the waves that run when it is dropped
    are done."""
    for matrix in (lora.down, lora.up):
        if matrix.device.type == "cuda":
            matrix.record_stream(torch.cuda.current_stream(matrix.device))
