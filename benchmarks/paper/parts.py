"""The figures and tables of the paper's evaluation: which benchmark measures each, and how it is shown."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .drawing import Groups

Row = Mapping[str, Any]

MOST_OVERHEAD = 0.03
"""Of `closed` over a worker in a tight loop; with more it is no opponent (docs/benchmarks.md)."""
TABLE_1 = (
    "get_arg", "send", "receive", "http_request", "available_models", "create_queue", "synchronize",
    "set_queue_priority", "export_kvpage", "import_kvpage", "alloc", "dealloc", "copy_kvpage", "forward", "mask_kvpage",
    "embed_txt", "tokenize", "detokenize", "get_vocabs", "get_next_dist",
)  # fmt: skip
"""The calls of the paper's Table 1, by our names."""
SHOWN_OF_CALLS = ("program", "tokens", "control", "inference", "commands")


@dataclass(frozen=True)
class Part:
    """`name`: of the benchmark. `paper`: what the paper has, in figures. `quick`, `full`: its options. `on_device`: it
    takes `--device` and `--opponent`. `groups`: the bars of its figure; None: a table is enough. `table`: the rows that
    the page shows, made of those that were measured. `said`: a sentence about them."""

    name: str
    title: str
    paper: str
    drawn: str = ""
    groups: Callable[[Sequence[Row]], Groups] | None = None
    quick: tuple[str, ...] = ("--quick",)
    full: tuple[str, ...] = ()
    on_device: bool = False
    table: Callable[[Sequence[Row]], Sequence[Row]] = lambda rows: rows
    said: Callable[[Sequence[Row]], str] = lambda rows: ""


def _pairs(label: Callable[[Row], str], **series: str) -> Callable[[Sequence[Row]], Groups]:
    """A group for each row, and in it the columns `series`, by the names of the bars; what is empty is left out."""

    def groups(rows: Sequence[Row]) -> Groups:
        found = {
            label(row): {name: row[column] for name, column in series.items() if row.get(column) is not None}
            for row in rows
        }
        return {name: bars for name, bars in found.items() if bars}

    return groups


def _agent(row: Row) -> str:
    return f"{row['model']}, {row['agent']}{_guest(row)}, {row['ios']} I/Os, {row['round_trip_ms']} ms away"


def _guest(row: Row) -> str:
    """Python is not named; reports of before have nothing else."""
    return " in Rust" if row.get("guest") == "rust" else ""


def _short(text: str) -> str:
    return text.replace("documentation ", "").replace("calls on sight", "sight")


def closed_verdict(rows: Sequence[Row]) -> str:
    """Whether `closed` is an opponent, by the rows of `closed_tpot`."""
    of_model: dict[str, list[float]] = {}
    for row in rows:
        of_model.setdefault(row["model"], []).append(100 * row["overhead"])
    longer = ", ".join(f"{_range(overheads)} with {model}" for model, overheads in of_model.items())
    told = f"`closed` takes longer than the closed loop, where that ran, by {longer}: "
    bound = 100 * MOST_OVERHEAD
    if not (beyond := no_opponent_with(rows)):
        return f"{told}at most {bound:g} % are allowed, so it is an opponent."
    return (
        f"{told}{bound:g} % are allowed, so with {beyond} it is **no opponent**, and ratios to it are better for Pie "
        "than they would be to a server without that overhead."
    )


def no_opponent_with(rows: Sequence[Row]) -> str:
    """The models with which `closed` takes too long."""
    return " and ".join(dict.fromkeys(row["model"] for row in rows if row["overhead"] > MOST_OVERHEAD))


def _range(values: Sequence[float]) -> str:
    least, most = f"{min(values):.1f}", f"{max(values):.1f}"
    return f"{least} %" if least == most else f"{least} to {most} %"


def measures_met(rows: Sequence[Row]) -> str:
    """How many measures of techniques are what they have to be; docs/techniques.md has them one by one."""
    bound = [row for row in rows if row["reach"]]
    met = sum(row["passed"] for row in bound)
    return (
        f"{met} of {len(bound)} measures of {len({row['technique'] for row in rows})} techniques are what they have to "
        "be. [techniques.md](techniques.md) shows all, with as many problems as stand there."
    )


def side_by_side(rows: Sequence[Row], of: Sequence[str], cells: Callable[[Row], Row]) -> list[Row]:
    """A row for each combination of the columns `of`, with the cells of all rows that have it beside each other."""
    empty = dict.fromkeys(name for row in rows for name in cells(row))
    table: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in rows:
        key = tuple(row.get(column, "") for column in of)
        table.setdefault(key, dict(zip(of, key, strict=True)) | empty).update(cells(row))
    return list(table.values())


def _at_distance(row: Row) -> Row:
    return {f"{name}, {row['round_trip_ms']} ms": row.get(name) for name in ("pie_ms", "latency", "rate")}


def _time_of_call(row: Row) -> Row:
    return {f"{row['guest']}, {row['inferlets']}": "-" if row["us"] < 0 else row["us"]}


PARTS = (
    Part(
        "agents",
        "Figure 6: agents",
        "ReACT (8 I/Os), CodeACT (8) and Swarm (32) took 4.27, 3.18 and 6.14 s with a 1B model, at 29.94, 40.18 and "
        "5.21 agents a second; ReACT had up to 15 % less latency and 30 % more throughput than vLLM and SGLang, and "
        "there was no difference with fewer than two I/Os.",
        "Latency of one agent, in milliseconds",
        _pairs(_agent, Pie="pie_ms", opponent="opponent_ms"),
        on_device=True,
        table=lambda rows: side_by_side(rows, ("model", "agent", "guest", "ios"), _at_distance),
        said=lambda rows: "Columns are for round trips of so many milliseconds. The JSON has all numbers.",
    ),
    Part(
        "optimizations",
        "Figure 7: optimizations of an application",
        "3.5 times the throughput of the workflow in Python on vLLM, with all three.",
        "Agents a second",
        _pairs(lambda row: f"{row['model']}, {_short(row['agent'])}{_guest(row)}", rate="agents_s"),
        on_device=True,
    ),
    Part(
        "features",
        "Figure 8: techniques",
        "Completion, prefix caching and structured output about as fast as vLLM and SGLang (no numbers in the text); "
        "beam search a little slower with more throughput; attention sink with 1.5 times less latency and more than 30 "
        "times the throughput of StreamingLLM; strategies of prompting with up to 28 % less latency and 34 % more "
        "throughput.",
        "Latency of one request, in milliseconds",
        _pairs(lambda row: f"{row['model']}, {row['feature']}{_guest(row)}", Pie="pie_ms", opponent="opponent_ms"),
        on_device=True,
    ),
    Part(
        "techniques",
        "Figure 8 and Table 2: what each technique gains",
        "Lines of each program. Beside the numbers above: tree of thought, recursion of thought, "
        "graph of thought, skeleton of thought, watermarking, output validation, speculative decoding, Jacobi decoding "
        "and attention over windows, each over a baseline of its own.",
        table=lambda rows: (),
        said=measures_met,
    ),
    Part(
        "transformers_batching",
        "Beside: the continuous batching of transformers",
        "(not in the paper)",
        "Tokens a second",
        _pairs(lambda row: str(row["model"]), closed="closed_tokens_s", transformers="transformers_tokens_s"),
    ),
    Part(
        "closed_tpot",
        "Beside: is closed an opponent?",
        "(not in the paper)",
        "Milliseconds per output token",
        _pairs(
            lambda row: f"{row['model']}, {row['concurrent']} at once",
            **{"closed": "closed_ms", "closed loop": "closed_loop_ms"},
        ),
        said=closed_verdict,
    ),
    Part(
        "launch",
        "Figure 9: time to launch",
        "10 to 50 ms warm and 35 to 81 ms cold, for up to 896 at once, Rust.",
        "Milliseconds, through a session",
        lambda rows: {
            f"{row['guest']}, {'warm' if row['warm'] else 'cold'}, {row['concurrent']} at once": {
                "p50": row["p50_ms"],
                "p99": row["p99_ms"],
            }
            for row in rows
        },
        table=lambda rows: side_by_side(
            rows,
            ("guest", "warm"),
            lambda row: {f"{row['concurrent']} at once": f"{row['p50_ms']}, {row['p99_ms']}"},
        ),
        said=lambda rows: (
            "Milliseconds of the median launch, and of the one that is slower than 99 in 100. Before each round the "
            "server has rested until as many guests of Python are ready as were launched at once."
        ),
    ),
    Part(
        "api_calls",
        "Figure 10: time of calls",
        "Below 30 us in the control layer, 10 to 300 us in the inference layer, with up to 896 inferlets.",
        table=lambda rows: side_by_side(
            [row for row in rows if row["call"] in TABLE_1], ("call", "layer"), _time_of_call
        ),
        said=lambda rows: (
            "Microseconds (`us`) of the calls of the paper's Table 1, by guest and inferlets that call at the same "
            "time. `-`: less than what is taken off for the guest, so below the noise. The JSON has all calls."
        ),
    ),
    Part(
        "calls_per_token",
        "Figure 11: calls for each token",
        "Text completion makes 1.5 calls of the control layer and 1.6 of the inference layer for each token; beam "
        "search about 13 and 17.",
        "Calls for each token",
        _pairs(lambda row: str(row["program"]), control="control", inference="inference"),
        table=lambda rows: [{name: row[name] for name in SHOWN_OF_CALLS} for row in rows],
    ),
    Part(
        "opportunity_cost",
        "Table 3: cost of the programming model",
        "vLLM 64.06 ms a token with 8B; Pie adds 1.32 ms because sampling is not pipelined, 0.07 for embedding, 0.05 "
        "for scheduling, 0.07 for distributions, 0.006 and 0.001 for boundaries: 1.53 ms.",
        "Milliseconds added to each token",
        _pairs(lambda row: f"{row['model']}, {row['way']}", added="added_ms"),
    ),
    Part(
        "model_sizes",
        "Table 4: time per output token and size of the model",
        "vLLM 64.06, 30.30 and 16.83 ms with 8B, 3B and 1B; Pie 2.39, 5.64 and 11.41 % more.",
        "Milliseconds per output token",
        _pairs(
            lambda row: f"{row['model']}, {row['program']}",
            **{"Pie": "pie_ms", "closed loop": "closed_loop_ms"},
        ),
    ),
    Part(
        "policies",
        "Table 5: policies of batching",
        "Eager 5.61, K-only 30.09, T-only 78.11, Adaptive 84.85 requests a second, 128 inferlets.",
        "Requests a second, on a paced worker",
        _pairs(lambda row: str(row["policy"]), rate="requests_s"),
    ),
)
NAMES = tuple(part.name for part in PARTS)
