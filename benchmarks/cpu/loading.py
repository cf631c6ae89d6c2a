"""How long does loading take, against reading the files?

Weights are loaded unchanged, in bfloat16, and quantized. The checkpoint has the shapes of Llama 8B with fewer layers
and random weights, in two shards that are in the system's cache. Reading them is measured twice: each block over the
one before, as in a disk test, and into memory that holds everything, as a loader must: new memory may bound it more
than reading does. It needs 18 GB of memory and 8 GB of disk.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from pie_inference.config import WorkerConfig
from pie_inference.device.host_memory import lazy_zero_bytes
from pie_inference.serving.worker import Worker
from pie_inference.testing import byte_tokenizer
from testing.checkpoints import llama_config, tensor_shapes

from ..support.models.large_files import write_weights

SHARDS = 2
BLOCK = 1 << 20


@dataclass(frozen=True)
class Plan:
    """The best of `rounds` counts."""

    layers: int
    hidden_size: int
    vocab_size: int
    rounds: int
    quantizations: tuple[str, ...]


FULL = Plan(14, 4096, 128256, 3, ("none", "int8", "int4"))
QUICK = Plan(1, 1024, 272, 1, ("none", "int8"))


@dataclass(frozen=True)
class Row:
    """Seconds are the best of the rounds."""

    quantization: str
    gigabytes: float  # size of the files
    threads: int
    discard_s: float  # reading the files, each block over the one before
    read_s: float  # reading the files into memory that holds them
    load_s: float  # until a worker is ready, with 16 pages of KV cache
    of_read: float  # load_s / read_s
    of_discard: float


async def run(plan: Plan) -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        files = make_checkpoint(Path(folder), plan)
        discard = best(plan.rounds, lambda: discard_files(files))
        read = best(plan.rounds, lambda: read_files(files))
        return [measure(Path(folder), files, plan, name, discard, read) for name in plan.quantizations]


def measure(folder: Path, files: list[Path], plan: Plan, quantization: str, discard: float, read: float) -> Row:
    config = WorkerConfig(
        folder, "model", dtype="bfloat16", device="cpu", quantization=quantization, pages=16, host_pages=0, embeds=1024
    )
    load = best(plan.rounds, lambda: Worker(config))
    return Row(
        quantization=quantization,
        gigabytes=round(sum(path.stat().st_size for path in files) / 1e9, 3),
        threads=torch.get_num_threads(),
        discard_s=round(discard, 4),
        read_s=round(read, 4),
        load_s=round(load, 3),
        of_read=round(load / read, 2),
        of_discard=round(load / discard, 2),
    )


def best(rounds: int, action: Callable[[], object]) -> float:
    """Seconds of the fastest of `rounds` runs. The result of each run is dropped."""
    times = []
    for _ in range(rounds):
        started = time.perf_counter()
        made = action()
        times.append(time.perf_counter() - started)
        del made
    return min(times)


def discard_files(files: list[Path]) -> None:
    block = bytearray(BLOCK)
    for path in files:
        with path.open("rb", buffering=0) as file:
            while file.readinto(block):
                pass


def read_files(files: list[Path]) -> list[object]:
    """Reads the files into huge pages, the fastest kind of new memory."""
    contents: list[object] = []
    for path in files:
        memory = lazy_zero_bytes(path.stat().st_size)
        with path.open("rb", buffering=0) as file:
            view, done = memory.data, 0
            while count := file.readinto(view[done : done + BLOCK]):
                done += count
        contents.append(memory)
    return contents


def make_checkpoint(folder: Path, plan: Plan) -> list[Path]:
    """Makes a checkpoint; returns its weight files."""
    config = llama_config(
        hidden_size=plan.hidden_size,
        intermediate_size=14336,
        num_layers=plan.layers,
        num_heads=32,
        num_kv_heads=8,
        head_dim=128,
        vocab_size=plan.vocab_size,
        max_context=8192,
        dtype=torch.bfloat16,
    )
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_bytes(byte_tokenizer.tokenizer_json(plan.vocab_size))
    shapes = tensor_shapes(config)
    weight_map: dict[str, str] = {}
    for shard in range(SHARDS):
        name = f"model-{shard + 1:05}-of-{SHARDS:05}.safetensors"
        own = {key: shapes[key] for key in sorted(shapes)[shard::SHARDS]}
        write_weights(folder / name, own)
        weight_map |= dict.fromkeys(own, name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return sorted(folder.glob("*.safetensors"))
