"""The options of a worker, said once: its command line and checks, and the settings of a server, derive from them. Also
what both sides must read alike. Light: the command line imports it to answer --help.

Where the worker chooses by itself, options with names say "auto", and numbers are None; as text, both are "auto".
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import Any

AUTO = "auto"

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
"""What reads like a model on the Hugging Face hub: "organization/name"."""


def default_cache_dir() -> Path:
    """Where compiled code is kept unless an option says otherwise."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "pie"


Value = str | int | None


class OptionError(ValueError):
    """A wrong option. The message names it and says what is allowed."""


def _choice(default: str, text: str, *choices: str) -> Any:
    return field(default=default, metadata={"help": text, "choices": choices})


def _count(default: int | None, text: str, least: int = 1, most: int | None = None) -> Any:
    return field(default=default, metadata={"help": text, "choices": (), "least": least, "most": most})


@dataclass(frozen=True, kw_only=True)
class WorkerOptions:
    """How a worker serves its model, and how much memory it takes. Raises OptionError."""

    dtype: str = _choice(
        *("auto", "number format of the weights; float64: to compare with, by plain torch operations"),
        *("auto", "float32", "bfloat16", "float64"),
    )
    device: str = _choice("auto", "where the model runs", "auto", "cpu", "cuda")
    kernels: str = _choice(
        *("auto", "kernels of all operations; own: the compiled ones for CPUs, without trials against torch's"),
        *("auto", "own", "torch"),
    )
    max_isa: str = _choice(
        *("auto", "instructions that a CPU may use; avx512: no tiles (AMX); to compare with other machines"),
        *("auto", "avx512", "avx2"),
    )
    attention: str = _choice(
        *("auto", "kernels of attention; auto: the fastest that can serve"),
        *("auto", "flashinfer", "triton", "cpu", "torch"),
    )
    model_code: str = _choice(
        *("auto", "whose code runs the model; auto: Pie's own for the families that it has, else transformers'"),
        *("auto", "own", "transformers"),
    )
    quantization: str = _choice(
        *("none", "form of the weights of linear layers"),
        *("none", "int8", "int4", "int4-64", "int4-32", "fp8"),
    )
    graphs: str = _choice("auto", "record small batches (on CUDA: decode steps), and replay them", "auto", "off")
    max_context: int | None = _count(None, "most tokens in a sequence; auto: as the model says")
    pages: int | None = _count(None, "KV pages in the pool; auto: what fits the memory")
    states: int | None = _count(None, "states of texts, of models that keep them; auto: half of the memory of pages")
    host_pages: int = _count(0, "KV pages in the host's memory to swap to; no policy swaps yet", least=0)
    embeds: int | None = _count(None, "embeds in the pool; auto: what fits the memory")
    token_slots: int = _count(65536, "sampled tokens that later batches may use before the control process knows them")
    page_size: int = _count(16, "tokens in a KV page, 8 to 32", least=8, most=32)
    threads: int | None = _count(None, "threads of the worker; auto: 1 for a small model, else all cores but one")
    tensor_parallel: int = _count(1, "processes that share the model, each on a GPU of its own")
    max_batch_tokens: int = _count(1024, "input tokens in one batch")
    max_batch_rows: int = _count(256, "commands in one batch that samples, or reads distributions")
    max_adapters: int = _count(16, "LoRA adapters that are loaded at a time; 0: none can be", least=0)
    adapter_mb: int = _count(1024, "MiB of memory for all LoRA adapters, of what pages leave free", least=0)

    def __post_init__(self) -> None:
        for option in option_fields():
            _check(option, getattr(self, option.name))


def option_fields() -> Iterator[Field[Any]]:
    """The fields of WorkerOptions. Their metadata: `help`; `choices` of names; `least` and `most` of numbers."""
    yield from fields(WorkerOptions)


def flag(name: str) -> str:
    """--max-context of max_context."""
    return f"--{name.replace('_', '-')}"


def read_options(values: Mapping[str, object]) -> dict[str, Any]:
    """Arguments for WorkerOptions: those values that are options, or their text. Raises OptionError for other text."""
    return {option.name: _read(option, values[option.name]) for option in option_fields() if option.name in values}


def add_arguments(parser: argparse._ActionsContainer) -> None:
    """All options to a command line; `given_options` reads them."""
    for option in option_fields():
        choices, default = option.metadata["choices"], AUTO if option.default is None else option.default
        parser.add_argument(
            flag(option.name),
            metavar="|".join(choices) or "N",
            help=f"{option.metadata['help']} (default: {default})",
        )


def given_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Arguments for WorkerOptions: what a command line names. Raises OptionError."""
    return read_options({name: value for name, value in vars(arguments).items() if value is not None})


def to_arguments(options: WorkerOptions) -> list[str]:
    """A command line that gives these options; those at their defaults are left out."""
    values = [(option, getattr(options, option.name)) for option in option_fields()]
    return [word for option, value in values if value != option.default for word in (flag(option.name), str(value))]


def _read(option: Field[Any], value: object) -> Value:
    if option.metadata["choices"]:
        return str(value)
    if value is None or (value == AUTO and option.default is None):
        return None
    try:
        return int(str(value))
    except ValueError:
        allowed = "a whole number or auto" if option.default is None else "a whole number"
        raise OptionError(f"{flag(option.name)} must be {allowed}, not {value!r}") from None


def _check(option: Field[Any], value: Value) -> None:
    choices = option.metadata["choices"]
    if choices and value not in choices:
        raise OptionError(f"{flag(option.name)} must be one of {', '.join(choices)}, not {value!r}")
    if choices or (value is None and option.default is None):
        return
    least, most = option.metadata["least"], option.metadata["most"]
    if not isinstance(value, int) or value < least or (most is not None and value > most):
        allowed = f"at least {least}" if most is None else f"{least} to {most}"
        raise OptionError(f"{flag(option.name)} must be {allowed}, not {value}")
