"""The worker's configuration: one frozen object, built from the command line. Imports no torch."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from .errors import ConfigError
from .quantization.names import FORMATS

DTYPES = ("auto", "float32", "bfloat16")
DEVICES = ("auto", "cpu", "cuda")
KERNELS = ("auto", "torch")
QUANTIZATIONS = ("none", *FORMATS)
CUDA_GRAPHS = ("auto", "off")
ATTENTIONS = ("auto", "flashinfer", "triton", "cpu", "torch")
PAGE_SIZES = range(8, 33)
COUNTS = (
    *("max_context", "pages", "embeds", "token_slots", "threads"),
    *("tensor_parallel", "max_batch_tokens", "max_batch_rows"),
)


@dataclass(frozen=True)
class WorkerConfig:
    """What a worker serves and how much memory it takes. None: chosen from the machine at start."""

    model: Path
    name: str
    dtype: str = "auto"
    device: str = "auto"
    kernels: str = "auto"
    attention: str = "auto"
    quantization: str = "none"
    cuda_graphs: str = "auto"
    max_context: int | None = None
    pages: int | None = None
    host_pages: int | None = None
    embeds: int | None = None
    token_slots: int = 65536
    page_size: int = 16
    threads: int | None = None
    tensor_parallel: int = 1
    max_batch_tokens: int = 1024
    max_batch_rows: int = 256
    cache_dir: Path | None = None  # None: the user's, see `default_cache_dir`

    def __post_init__(self) -> None:
        _check_choice("--dtype", self.dtype, DTYPES)
        _check_choice("--device", self.device, DEVICES)
        _check_choice("--kernels", self.kernels, KERNELS)
        _check_choice("--attention", self.attention, ATTENTIONS)
        _check_choice("--quantization", self.quantization, QUANTIZATIONS)
        _check_choice("--cuda-graphs", self.cuda_graphs, CUDA_GRAPHS)
        _check_choice("--page-size", self.page_size, PAGE_SIZES)
        for name in COUNTS:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"--{name.replace('_', '-')} must be at least 1, not {value}")
        if self.host_pages is not None and self.host_pages < 0:
            raise ConfigError(f"--host-pages must be at least 0, not {self.host_pages}")


@dataclass(frozen=True)
class ProcessOptions:
    """The whole command line of a worker."""

    endpoint: str  # ZeroMQ address that the control layer has bound
    parent: int | None  # process that the worker must not outlive
    config: WorkerConfig


def parse_options(arguments: Sequence[str] | None = None) -> ProcessOptions:
    """Options of `python -m pie_inference.serving`. Raises ConfigError; exits where argparse does."""
    values = vars(_parser().parse_args(arguments))
    known = {field.name for field in fields(WorkerConfig)}
    config = WorkerConfig(**{name: value for name, value in values.items() if name in known})
    return ProcessOptions(values["endpoint"], values["parent"], config)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "pie_inference.serving", description="Serves one model to a Pie control process.", allow_abbrev=False
    )
    parser.add_argument("--endpoint", required=True, help="ZeroMQ address that the control process has bound")
    parser.add_argument("--parent", type=int, help="process id that the worker must not outlive")
    parser.add_argument("--model", type=Path, required=True, help="folder of a Hugging Face checkpoint or its id")
    parser.add_argument("--name", required=True, help="name under which the model is served")
    parser.add_argument("--dtype", default="auto", choices=DTYPES)
    parser.add_argument("--device", default="auto", choices=DEVICES)
    parser.add_argument("--kernels", default="auto", choices=KERNELS, help="kernels of all other operations")
    parser.add_argument("--cuda-graphs", default="auto", choices=CUDA_GRAPHS, help="for decode batches on a GPU")
    parser.add_argument("--attention", default="auto", choices=ATTENTIONS, help="kernels of attention")
    parser.add_argument("--quantization", default="none", choices=QUANTIZATIONS, help="form of linear weights")
    parser.add_argument("--max-context", type=int, help="most tokens in a sequence (default: by the model)")
    parser.add_argument("--pages", type=int, help="pages of the KV cache (default: from memory)")
    parser.add_argument("--host-pages", type=int, help="pages in the host's memory to swap to (default: from memory)")
    parser.add_argument("--embeds", type=int, help="embed slots (default: from memory)")
    parser.add_argument("--token-slots", type=int, default=WorkerConfig.token_slots)
    parser.add_argument("--page-size", type=int, default=WorkerConfig.page_size, help="tokens in a page, 8 to 32")
    parser.add_argument("--threads", type=int, help="threads that compute (default: by the model)")
    parser.add_argument(
        "--tensor-parallel", type=int, default=1, help="processes that share the model, each with a device of its own"
    )
    parser.add_argument("--max-batch-tokens", type=int, default=WorkerConfig.max_batch_tokens)
    parser.add_argument("--max-batch-rows", type=int, default=WorkerConfig.max_batch_rows)
    parser.add_argument("--cache-dir", type=Path, help="folder for compiled kernels (default: $XDG_CACHE_HOME/pie)")
    return parser


def default_cache_dir() -> Path:
    """Where compiled kernels are kept unless an option says otherwise."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "pie"


def _check_choice(option: str, value: object, choices: Sequence[object]) -> None:
    if value not in choices:
        raise ConfigError(f"{option} {value} is not one of {', '.join(map(str, choices))}")
