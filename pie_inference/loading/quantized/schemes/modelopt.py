"""NVFP4 and FP8 as NVIDIA's Model Optimizer stores them, told by config.json or hf_quant_config.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ....errors import CheckpointError
from ..scheme import TAKE_THE_ORIGINAL, UNUSED, Scheme, Settings, StoredWeight, Tensors
from .fp4 import NV_GROUP, read_nvfp4
from .fp8 import Fp8Whole

FP8 = "FP8"
SMOOTHED = "pre_quant_scale"


def model_opt(config: Settings) -> Scheme:
    """The scheme that `quant_algo` names."""
    settings = config if config.get("quantization") is None else config.mapping("quantization")
    algorithm = settings.one_of("quant_algo", ["NVFP4", "W4A16_NVFP4", FP8])
    return Fp8Whole("ModelOpt FP8", "weight_scale") if algorithm == FP8 else ModelOpt(settings)


class ModelOpt(Scheme):
    """Activations, keys and values stay in the model's number format, whatever the file has for them."""

    scales: Sequence[str] = (".weight_scale", ".weight_scale_2")
    endings: Mapping[str, int] = {
        ".weight": 2,
        ".weight_scale": 0,
        ".weight_scale_2": 0,
        **UNUSED,
    }

    def __init__(self, settings: Settings) -> None:
        settings.one_of("group_size", [NV_GROUP], NV_GROUP)
        if settings.get("config_groups") is not None:
            groups = settings.mapping("config_groups")
            for name in groups:
                weights = groups.mapping(name).mapping("weights")
                weights.one_of("num_bits", [4])
                weights.one_of("type", ["float"], "float")
                weights.one_of("group_size", [NV_GROUP], NV_GROUP)
        self.name = f"ModelOpt NVFP4, 4 bits in groups of {NV_GROUP}, only weights"

    def read(self, tensors: Tensors, module: str, rows: int, columns: int) -> StoredWeight:
        if f"{module}.{SMOOTHED}" in tensors:
            raise CheckpointError(f"tensor '{module}.{SMOOTHED}': it scales activations; {TAKE_THE_ORIGINAL}")
        names = (f"{module}.weight", f"{module}.weight_scale", f"{module}.weight_scale_2")
        return read_nvfp4(tensors, names, rows, columns, divide=False)
