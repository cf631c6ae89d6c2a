"""What the page shows of rows that are too many, or that need a sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]

MOST_OVERHEAD = 0.03
"""Of `closed` over a worker in a tight loop; with more it is no opponent (docs/benchmarks.md)."""
TABLE_1 = (
    "get_arg", "send", "receive", "http_request", "available_models", "create_queue", "synchronize",
    "set_queue_priority", "export_kvpage", "import_kvpage", "alloc", "dealloc", "copy_kvpage", "forward", "mask_kvpage",
    "embed_txt", "tokenize", "detokenize", "get_vocabs", "get_next_dist",
)  # fmt: skip
"""The calls of the paper's Table 1, by our names."""


def closed_verdict(rows: Sequence[Row]) -> str:
    """Whether `closed` is an opponent, by the rows of `closed_tpot`."""
    worst = max((row["overhead"] for row in rows), default=0.0)
    told = f"% longer than [the closed loop](#beside-is-closed-an-opponent) ({100 * MOST_OVERHEAD:g} % allowed): "
    if worst <= MOST_OVERHEAD:
        return f"`closed` takes at most {100 * worst:.1f} {told}it is an opponent."
    return (
        f"`closed` takes up to {100 * worst:.1f} {told}in that run it is **no opponent**, and ratios to it are better "
        "for Pie than they would be to a server without that overhead."
    )


def measures_met(rows: Sequence[Row]) -> str:
    """How many measures of techniques are what they have to be; docs/techniques.md has them one by one."""
    bound = [row for row in rows if row["reach"]]
    met = sum(row["passed"] for row in bound)
    return (
        f"{met} of {len(bound)} measures of {len({row['technique'] for row in rows})} techniques are what they have to "
        "be. [techniques.md](techniques.md) shows all, with more problems each."
    )


def times_of_calls(rows: Sequence[Row]) -> list[Row]:
    """A row for each call of the paper's Table 1, with a column for each guest and number of inferlets."""
    columns = list(dict.fromkeys(_column(row) for row in rows))
    table: dict[tuple[str, str], dict[str, Any]] = {}
    for row in rows:
        if row["call"] in TABLE_1:
            empty = {"call": row["call"], "layer": row["layer"], **dict.fromkeys(columns)}
            cells = table.setdefault((row["call"], row["layer"]), empty)
            cells[_column(row)] = "-" if row["us"] < 0 else row["us"]
    return list(table.values())


def _column(row: Row) -> str:
    return f"{row['guest']}, {row['inferlets']}"
