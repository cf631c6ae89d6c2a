"""Provisional."""
from __future__ import annotations
from dataclasses import dataclass, field, fields
from typing import Any

def _o(default: Any, text: str, choices: tuple[str, ...] = (), least: float = 0) -> Any:
    return field(default=default, metadata={"help": text, "choices": choices, "least": least})

@dataclass(frozen=True, slots=True)
class WorkerOptions:
    dtype: str = _o("auto", "number format of the weights", choices=("auto", "float32", "bfloat16"))
    device: str = _o("auto", "where", choices=("auto", "cpu", "cuda"))
    pages: int | None = _o(None, "pages")
    threads: int | None = _o(None, "threads")
    tensor_parallel: int = _o(1, "ranks")
    page_size: int = _o(16, "ranks")

def to_arguments(options: WorkerOptions) -> list[str]:
    found = [(f"--{f.name.replace('_','-')}", getattr(options, f.name)) for f in fields(options)]
    return [w for n, v in found if v is not None for w in (n, str(v))]
