"""Chooses device and number format for this machine, and reads its free memory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import torch

from ..control_groups import memory_left
from ..errors import ConfigError
from .ranks import Ranks

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64}
SMALL_MODEL = 200_000_000  # parameters up to which a CPU serves float32: exact, and fast enough


def choose_device(name: str, rank: int = 0, ranks: int = 1) -> torch.device:
    """The device for `name`, one of `WorkerOptions.device`; rank r gets the r-th GPU. Raises ConfigError."""
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("--device cuda: torch finds no CUDA device; install torch for CUDA, or use --device cpu")
    if name == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    found = torch.cuda.device_count()
    if ranks > found:
        raise ConfigError(f"--tensor-parallel {ranks} needs {ranks} CUDA devices, and this machine has {found}")
    return torch.device("cuda") if ranks == 1 else torch.device("cuda", rank)


def begin_with_gpu(first: int) -> None:
    """Makes this GPU, counted around, the first one that this process and those that it starts see, and those behind it
    the next ones. Call it before CUDA is used."""
    count = torch.cuda.device_count()
    if count < 2 or not first % count:
        return
    given = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(count)))
    names, turn = given.split(",")[:count], first % count
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(names[turn:] + names[:turn])


class ChosenDtype(NamedTuple):
    """The number format of a model's weights, and why it is this one."""

    dtype: torch.dtype
    why: str


def choose_dtype(
    name: str, device: torch.device, num_parameters: int, has_kernels: bool, quantized: bool
) -> ChosenDtype:
    """The number format for `name`, one of `WorkerOptions.dtype`. `has_kernels`: there are compiled ones for this CPU,
    all of which are fast in bfloat16. `quantized`: the weights of linear layers have another form; these kernels
    multiply them with rows in bfloat16 only."""
    if name != "auto":
        return ChosenDtype(DTYPES[name], f"--dtype {name}")
    if device.type == "cuda":
        return ChosenDtype(torch.bfloat16, "on a GPU")
    if not (has_kernels or torch.cpu._is_avx512_bf16_supported()):
        return ChosenDtype(torch.float32, "bfloat16 is slow here: there are no compiled kernels")
    if num_parameters > SMALL_MODEL:
        return ChosenDtype(torch.bfloat16, "it halves the memory to read for a token")
    if quantized:
        return ChosenDtype(torch.bfloat16, "kernels for quantized weights take rows in bfloat16")
    most = f"{SMALL_MODEL // 1_000_000} M"
    return ChosenDtype(
        torch.float32, f"a model of at most {most} parameters is fast enough and exact so; --dtype sets it"
    )


def count_processors(device: torch.device) -> int:
    """The number of processors of a GPU; 1 for a CPU."""
    if device.type != "cuda":
        return 1
    return torch.cuda.get_device_properties(device).multi_processor_count


def free_bytes(device: torch.device) -> int:
    """Free memory of the device, in bytes."""
    if device.type == "cuda":
        torch.cuda.empty_cache()  # what torch keeps of tensors that are gone is free
        return torch.cuda.mem_get_info(device)[0]
    return min([_available_bytes(), *memory_left()])


def _available_bytes() -> int:
    """Memory that the system could give, including cached files that it would drop."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")


def free_bytes_of_rank(device: torch.device, ranks: Ranks) -> int:
    """Free memory that each rank may use, the same for all ranks; ranks on CPUs share their memory. All ranks call it
    together."""
    free = ranks.all_reduce_min(free_bytes(device))
    return free // ranks.size if device.type == "cpu" else free
