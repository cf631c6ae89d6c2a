"""`pie bench-model`: how fast a checkpoint runs on this machine, beside the fastest that the machine allows."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import Any

from pie_inference.amounts import amount
from pie_inference.options import add_arguments as add_model_settings

from ..inspection import count, inspect
from ..tables import format_table
from ..terminal import write_line

NAME = "bench-model"
HELP = "measure a checkpoint here in about a minute: tokens per second, and the bound"
EXAMPLES = """  pie bench-model ~/models/llama
  pie bench-model ~/models/llama --quantization int8 --threads 4
  pie bench-model demo --json"""

COLUMNS = ("WORK", "SEQUENCES", "TOKENS/S", "MS A WAVE", "BOUND TOKENS/S", "REACHED")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.add_argument(
        "checkpoint", metavar="MODEL", help="folder of a checkpoint, its id on the hub, `demo` or `demo-reasoner`"
    )
    parser.add_argument("--json", action="store_true", help="print all measurements as JSON")
    parser.add_argument("--quick", action="store_true", help="measure for a few seconds only")
    add_model_settings(parser)


def execute(options: argparse.Namespace) -> int:
    """Measures and prints."""
    [found] = inspect("measure", options, [options.checkpoint], ["--budget=0.05"] if options.quick else [])
    write_line(json.dumps(found, indent=2) if options.json else _text(found))
    return 0


def _text(found: Mapping[str, Any]) -> str:
    form = found["dtype"] if found["quantization"] == "none" else found["quantization"]
    seconds = found["load_seconds"]
    rate = amount(found["weight_bytes"] / seconds, "B/s")
    gemm = amount(found["gemm_operations_per_second"], "FLOP/s")
    lines = (
        f"{found['model']}: {found['architecture']}, {form} on {found['device']}, {count(found['threads'], 'thread')}",
        f"weights {amount(found['weight_bytes'], 'B')}, ready in {seconds:.1f} s ({rate}); "
        f"peak memory {amount(found['peak_bytes'], 'B')}",
        f"products {found['products']['why']}",
        f"memory reads {amount(found['read_bytes_per_second'], 'B/s')}, matrix products {gemm}",
        "",
        format_table(COLUMNS, map(_row, found["speeds"])),
        "",
        "The bound: each wave reads all weights and cached keys once, or multiplies by them, at the rates above.",
    )
    return "\n".join(lines)


def _row(speed: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        speed["work"],
        str(speed["sequences"]),
        f"{speed['tokens_per_second']:.1f}",
        f"{speed['milliseconds']:.2f}",
        f"{speed['bound_tokens_per_second']:.1f}",
        f"{speed['share']:.0%}",
    )
