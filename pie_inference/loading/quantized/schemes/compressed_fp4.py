"""NVFP4 and MXFP4 in the format of compressed-tensors. Only weights are served in it, activations in the model's number
format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..scheme import UNUSED, Scheme, Settings, StoredWeight, Tensors
from .compressed_tensors import settings_of_weights
from .fp4 import MX_GROUP, NV_GROUP, read_mxfp4, read_nvfp4

NVFP4, MXFP4 = "nvfp4-pack-quantized", "mxfp4-pack-quantized"


class CompressedFp4(Scheme):
    """Of either kind, without inputs in 4 bits."""

    scales: Sequence[str]
    endings: Mapping[str, int] = {
        ".weight_packed": 2,
        ".weight_scale": 0,
        ".weight_global_scale": 0,
        ".input_global_scale": 0,
        **UNUSED,
    }

    def __init__(self, config: Settings) -> None:
        self._nv: bool = config.one_of("format", [NVFP4, MXFP4]) == NVFP4
        weights = settings_of_weights(config)
        weights.one_of("num_bits", [4])
        weights.one_of("type", ["float"])
        weights.one_of("strategy", ["tensor_group" if self._nv else "group"])
        group = weights.one_of("group_size", [NV_GROUP if self._nv else MX_GROUP])
        weights.one_of("symmetric", [True], True)
        weights.one_of("scale_dtype", [None, "torch.float8_e4m3fn" if self._nv else "torch.uint8"])
        weights.one_of("actorder", [None, False, "weight", "static"])
        self.name = f"compressed-tensors {NVFP4 if self._nv else MXFP4}, 4 bits in groups of {group}, only weights"
        self.scales = (".weight_scale", ".weight_global_scale") if self._nv else (".weight_scale",)

    def read(self, tensors: Tensors, module: str, rows: int, columns: int) -> StoredWeight:
        if not self._nv:
            return read_mxfp4(tensors, f"{module}.weight_packed", f"{module}.weight_scale", rows, columns)
        names = (f"{module}.weight_packed", f"{module}.weight_scale", f"{module}.weight_global_scale")
        return read_nvfp4(tensors, names, rows, columns, divide=True)
