"""Weights that bitsandbytes has quantized (QLoRA, Dettmers et al. 2023; LLM.int8, 2022). They are read as the numbers
that they stand for, so a checkpoint of them serves as one that was never quantized, also with `--quantization`.

A weight of 4 bits is two codes in a byte, the first one in the upper half; blocks of them, whatever row they are in,
have a scale each. These may be codes of 8 bits themselves. A weight of 8 bits has a scale for each row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import msgspec
import torch
from torch import Tensor

from ...errors import CheckpointError

WEIGHT = ".weight"
STATE = ".quant_state.bitsandbytes__"
"""Behind the name of a weight of 4 bits, and before the kind of its codes: a tensor that says how it is stored."""
PARTS = (".absmax", ".quant_map", ".nested_absmax", ".nested_quant_map")
ROW_SCALES, ROW_FORMAT = ".SCB", ".weight_format"
MOST_OF_A_BYTE = 127
FORMATS: Mapping[str, tuple[str, torch.dtype]] = {
    "bfloat16": ("BF16", torch.bfloat16),
    "float16": ("F16", torch.float16),
    "float32": ("F32", torch.float32),
}
"""Number formats of weights, by their names in bitsandbytes: those in safetensors, and those of torch."""
AT_ONCE = 1 << 16
"""Blocks of a weight that are read at once."""

Read = Callable[[str], Tensor]
"""Gives a tensor by its name, as it is stored."""


class _State(msgspec.Struct):
    blocksize: int
    dtype: str
    shape: list[int]
    nested_blocksize: int = 0
    nested_offset: float = 0.0


@dataclass(frozen=True)
class Packed:
    """A weight, by the name under which it is stored."""

    name: str
    state: str  # the tensor that says how it is stored; of 8 bits, its scales

    def describe(self, read: Read) -> tuple[tuple[int, ...], str]:
        """The shape and the number format, by its name in safetensors, of what it stands for. Raises
        CheckpointError."""
        if self.state.endswith(ROW_SCALES):
            return tuple(read(self.name).shape), "F32"
        state = self._read_state(read)
        return tuple(state.shape), FORMATS[state.dtype][0]

    def read(self, read: Read) -> Tensor:
        """The numbers that it stands for. Raises CheckpointError."""
        if self.state.endswith(ROW_SCALES):
            values, scales = read(self.name), read(self.state).float()
            self._check(values.dtype == torch.int8 and scales.shape == values.shape[:1], scales)
            return values * (scales / MOST_OF_A_BYTE)[:, None]
        state = self._read_state(read)
        size, count = math.prod(state.shape), -(-math.prod(state.shape) // state.blocksize)
        codes, scales = read(self.name).contiguous().flatten().view(torch.uint8), self._scales(state, count, read)
        numbers = read(f"{self.name}.quant_map").float()
        self._check(numbers.shape == (16,) and len(codes) == -(-size // 2) and len(scales) == count, scales)
        pairs = torch.stack((numbers.repeat_interleave(16), numbers.repeat(16)), 1)  # by byte
        found, half = torch.empty(size, dtype=FORMATS[state.dtype][1]), state.blocksize // 2
        for first in range(0, count, AT_ONCE):
            own = scales[first : first + AT_ONCE].repeat_interleave(state.blocksize)
            some = codes[first * half : (first + AT_ONCE) * half].int()
            place = found[first * state.blocksize :][: len(own)]
            place.copy_(pairs.index_select(0, some).flatten()[: len(place)] * own[: len(place)])
        return found.view(state.shape)

    def _scales(self, state: _State, count: int, read: Read) -> Tensor:
        scales = read(f"{self.name}.absmax")
        if not state.nested_blocksize:
            return scales.float()
        numbers, factors = (read(f"{self.name}.nested_{part}").float() for part in ("quant_map", "absmax"))
        self._check(numbers.shape == (256,) and len(factors) == -(-count // state.nested_blocksize), factors)
        return numbers[scales.int()] * factors.repeat_interleave(state.nested_blocksize)[:count] + state.nested_offset

    def _read_state(self, read: Read) -> _State:
        try:
            state = msgspec.json.decode(read(self.state).numpy().tobytes(), type=_State)
        except msgspec.MsgspecError as error:
            raise CheckpointError(f"tensor {self.state!r}: {error}; the checkpoint is broken") from None
        known = state.dtype in FORMATS and min(state.shape, default=0) > 0
        if not known or state.blocksize < 2 or state.blocksize % 2 or state.nested_blocksize < 0:
            raise CheckpointError(f"tensor {self.state!r}: {state} is no form of it; the checkpoint is broken")
        return state

    def _check(self, fits: bool, scales: Tensor) -> None:
        if not fits:
            raise CheckpointError(f"tensor {self.name!r} does not fit the tensors beside it; the checkpoint is broken")
        if not bool(scales.isfinite().all()):
            raise CheckpointError(f"tensor {self.name!r}: a scale is not a number; the checkpoint is broken")


def find_packed(names: Iterable[str]) -> tuple[dict[str, Packed], set[str]]:
    """The weights that bitsandbytes has quantized, by their names, and the names of the tensors beside them."""
    stored = set(names)
    packed = {}
    for name in stored:
        weight, state, _ = name.partition(STATE)
        if not state and name.endswith(ROW_SCALES):
            weight = name.removesuffix(ROW_SCALES) + WEIGHT
        if weight != name and weight in stored:
            packed[weight] = Packed(weight, name)
    beside = {one.state for one in packed.values()}
    beside |= {weight + part for weight in packed for part in PARTS}
    return packed, beside | {weight.removesuffix(WEIGHT) + ROW_FORMAT for weight in packed}
