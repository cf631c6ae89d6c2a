"""How fast are linear layers by our kernels on a CPU, beside torch's and the bounds of the machine?

Distinct copies of one layer of Llama 1B are run in turn, so that weights come from memory and not from a cache.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pie_inference.cpu_kernels.library import Library, find_library
from pie_inference.inspection.rates import Rates
from pie_inference.ops.cpu_linear import LinearPacker
from pie_inference.ops.interface import Linear
from pie_inference.ops.torch_ops import TorchOps
from pie_inference.options import WorkerOptions, default_cache_dir
from pie_inference.quantization import cpu_linear, torch_linear
from pie_inference.quantization.formats import quantize
from pie_inference.quantization.names import FORMATS

from ..plans import refuse_unknown
from ..support.limited import limited_process
from ..support.rooflines import measure

LLAMA_1B = ((2048, 3072), (2048, 2048), (2048, 16384), (8192, 2048))
"""Input and output features: queries, keys and values; their output; gate and up; down."""
DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}
FORMS = (*DTYPES, *FORMATS)
CPU = torch.device("cpu")
WORST = 3.0
"""A form of torch's that takes so many times as long as ours with few rows is timed no more."""


@dataclass(frozen=True)
class Plan:
    """`forms` of the weights; `rows`: rows at a time. `copies` of the layer run in turn. The best of `repeats` counts.
    `max_isa` is a worker's option."""

    forms: tuple[str, ...]
    rows: tuple[int, ...]
    shapes: tuple[tuple[int, int], ...]
    copies: int
    repeats: int
    threads: int
    read_bytes: int = 1 << 30
    max_isa: str = "auto"

    def __post_init__(self) -> None:
        refuse_unknown("form", self.forms, FORMS)
        WorkerOptions(max_isa=self.max_isa)

    @property
    def weights(self) -> int:
        """Number of weights in one layer."""
        return sum(ins * outs for ins, outs in self.shapes)


FULL = Plan(
    ("bfloat16", "float32", "int8", "fp8", "int4"),
    (1, 2, 4, 8, 16, 32, 64, 256, 1024),
    LLAMA_1B,
    5,
    repeats=9,
    threads=2,
)
QUICK = Plan(("bfloat16", "int8"), (1, 16), LLAMA_1B, copies=2, repeats=2, threads=2)


@dataclass(frozen=True)
class Row:
    """The linear layers of one Transformer layer. `torch_ms`: by torch's products with the weights packed once; None:
    too slow to be timed. `ratio`: how many times as fast ours are. `bound_ms` is the least time that memory or
    multipliers need, at the measured rates."""

    form: str
    rows: int
    threads: int
    ms: float
    torch_ms: float | None
    ratio: float | None
    bound_ms: float
    of_bound: float


async def run(plan: Plan) -> list[Row]:
    """One row for each form and number of rows."""
    with limited_process(plan.max_isa) as pool:
        return pool.submit(_run, plan).result()


def _run(plan: Plan) -> list[Row]:
    rates = measure(plan.threads, plan.read_bytes, max_isa=plan.max_isa)
    library = find_library("own", default_cache_dir(), CPU, plan.max_isa)
    assert library is not None
    with torch.inference_mode():
        return [row for form in plan.forms for row in _rows(form, plan, library, rates)]


def _rows(form: str, plan: Plan, library: Library, rates: Rates) -> list[Row]:
    dtype = DTYPES.get(form, torch.bfloat16)
    make_own, make_torchs = _makers(form, dtype, library)
    weights = [torch.randn(outs, ins).to(dtype) for _ in range(plan.copies) for ins, outs in plan.shapes]
    own, torchs = [make_own(each) for each in weights], [make_torchs(each) for each in weights]
    stored = plan.weights * (FORMATS[form].nbytes(1, 128) / 128 if form in FORMATS else dtype.itemsize)
    found = []
    for rows in plan.rows:
        inputs = [torch.randn(rows, ins).to(dtype) for ins, _ in plan.shapes] * plan.copies
        best, others = math.inf, math.inf
        for _ in range(plan.repeats):
            best = min(best, _time(own, inputs))
            others = min(others, _time(torchs, inputs)) if torchs else math.inf
        bound = rates.seconds(stored, 2 * plan.weights * rows)
        ours, theirs = best / plan.copies, others / plan.copies
        timed = bool(torchs)
        found.append(
            Row(
                form,
                rows,
                plan.threads,
                round(ours * 1e3, 3),
                round(theirs * 1e3, 3) if timed else None,
                round(theirs / ours, 3) if timed else None,
                round(bound * 1e3, 3),
                round(bound / ours, 3),
            )
        )
        if theirs > WORST * ours:
            torchs = []
    return found


def _makers(form: str, dtype: torch.dtype, library: Library) -> tuple[Callable[[Tensor], Linear], ...]:
    """What makes our layer of a weight, and torch's."""
    if form in DTYPES:
        packer, plain = LinearPacker(library, dtype), TorchOps(CPU, dtype)
        return (lambda weight: packer.make([weight], None)), (lambda weight: plain.linear([weight], None))

    def quantized(make: Callable[..., Linear], *first: object) -> Callable[[Tensor], Linear]:
        return lambda weight: make(*first, quantize([weight], FORMATS[form], dtype, CPU), None)

    return quantized(cpu_linear.make_linear, library), quantized(torch_linear.make_linear)


def _time(layers: Sequence[Linear], inputs: Sequence[Tensor]) -> float:
    """Seconds of all layers, one after the other."""
    start = time.perf_counter()
    for layer, each in zip(layers, inputs, strict=True):
        layer(each)
    return time.perf_counter() - start
