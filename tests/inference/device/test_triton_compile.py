"""Triton's compiler needs no GPU: all kernels compile for an H100 or H200, and fit its processors; those of attention
also compile for GPUs whose processors have less memory."""

from __future__ import annotations

import ctypes
import signal
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

triton = pytest.importorskip("triton")

from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

from pie_inference.adapters.products import triton_kernels as adapter_kernels  # noqa: E402
from pie_inference.adapters.products.triton_products import BLOCK_FEATURES, BLOCK_INS, BLOCK_OUTS  # noqa: E402
from pie_inference.attention.tiles import MOST_SPLITS, SPLIT_SLOTS  # noqa: E402
from pie_inference.attention.triton import kernels as attention_kernels  # noqa: E402
from pie_inference.attention.triton.plan import FIRST_BLOCK, FIRST_BLOCKS, merged_rows, pad, tune  # noqa: E402
from pie_inference.device.triton_support import _do_nothing  # noqa: E402
from pie_inference.ops import triton_kernels as ops_kernels  # noqa: E402
from pie_inference.quantization import triton_kernels as quantized_kernels  # noqa: E402
from pie_inference.quantization.triton_linear import TritonLinear  # noqa: E402
from pie_inference.recurrence import triton_kernels as recurrence_kernels  # noqa: E402
from pie_inference.recurrence.triton_recurrences import CHANNELS, COLUMNS, ROWS  # noqa: E402
from testing.quantized_weights import KINDS, random_weight  # noqa: E402
from tests.helpers.tiers import WHOLE, corpus  # noqa: E402

SHARED_MEMORY = 227 << 10  # of a processor, bytes
LEAST_SHARED_MEMORY = 99 << 10  # of an L4, A10 or RTX
ARCH = 90
SCALARS = {"scale": "fp32", "soft_cap": "fp32", "eps": "fp32"}
TABLES = {
    "mask_start": "*i64",
    "mask_bits": "*u8",
    "log_sums": "*fp32",
    "parts": "*fp32",
    "table": "*i64",
    "hidden": "*fp32",
}
LAYERS = ("inputs", "results", "rows", "residual", "weight", "result", "vectors", "gate_up")
VECTORS = ("cache", "key_value", "query", "output", *LAYERS)
SIZES = ("stride", "ins", "outs")
SINGLE = "ld.global.b16"
"""A load of one number where eight could come at once, and could come while others are multiplied."""
INTEGERS = ("window", "splits", "num_rows", "inner", "heads")
ITEM_SIZES = {"bf16": 2, "fp16": 2, "fp32": 4}

pytestmark = [
    pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION"),
    pytest.mark.filterwarnings("ignore:AnnAssign.__init__ missing:DeprecationWarning"),  # Triton's, from Python 3.13 on
]


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


@pytest.fixture(autouse=True)
def _signals() -> Iterator[None]:
    """LLVM takes the signals that end a process. At the first one, tests after these would have its handlers for
    crashes as well, under which a trap of a guest is raised again for ever."""
    system, numbers = ctypes.CDLL(None), sorted(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})
    before = {number: ctypes.create_string_buffer(512) for number in numbers}  # of struct sigaction
    for number, action in before.items():
        system.sigaction(number, None, action)
    yield
    for number, action in before.items():
        system.sigaction(number, action, None)


def compile_for_h100(
    kernel: Any, constants: Mapping[str, Any], dtype: str, types: Mapping[str, str] | None = None, **options: int
) -> Any:
    """As a launch would, with all vectors of `dtype`, and all pointers and sizes multiples of 16, which the kernel
    knows unless it is told not to look."""
    chosen = {
        name: "constexpr" if name in constants else (types or {}).get(name, _type(name, dtype))
        for name in kernel.arg_names
    }
    sizes = [one.name for one in kernel.params if one.name.endswith(SIZES) and not one.do_not_specialize]
    aligned = [n for n, (name, kind) in enumerate(chosen.items()) if kind.startswith("*") or name in sizes]
    source = ASTSource(
        fn=kernel,
        signature=chosen,
        constexprs={(kernel.arg_names.index(name),): value for name, value in constants.items()},
        attrs={(place,): [["tt.divisibility", 16]] for place in aligned},
    )
    return triton.compile(source, target=GPUTarget("cuda", ARCH, 32), options=options)


def _type(name: str, dtype: str) -> str:
    if name in VECTORS:
        return f"*{dtype}"
    if name in INTEGERS or name.endswith("stride"):
        return "i32"
    return SCALARS.get(name) or TABLES.get(name, "*i32")


def attend(dim: int, rows: int, dtype: str, **flags: bool) -> Any:
    chosen = {"HOLES": False, "MASKED": False, "WINDOWED": False, "CAPPED": False, "SPLIT": False} | flags
    needs = {
        "HOLES": ("piece_bits", "piece_rank"),
        "MASKED": ("mask_start", "mask_bits"),
        "WINDOWED": ("tile_begin", "key_positions", "query_positions"),
        "SPLIT": ("log_sums",),
    }
    missing = {name: None for flag, names in needs.items() if not chosen[flag] for name in names}
    tuning = tune(pad(dim, 16), rows, ITEM_SIZES[dtype])
    sizes = {"GROUP": 4, "KV_HEADS": 8, "HEAD_DIM": dim, "PADDED_DIM": pad(dim, 16), "PAGE_SIZE": 16, "TILE_ROWS": rows}
    constants = {**sizes, **chosen, **missing, "BLOCK_SLOTS": tuning.block_slots, "LEAST_SHARE": SPLIT_SLOTS}
    options = {"num_warps": tuning.num_warps, "num_stages": tuning.num_stages}
    output = {"output": "*fp32"} if chosen["SPLIT"] else {}
    return compile_for_h100(attention_kernels.attend_tiles, constants, dtype, output, **options)


def test_the_kernel_that_is_tried_first() -> None:
    compile_for_h100(triton.jit(_do_nothing), {}, "fp32", {"numbers": "*fp32"})


EVERY_FLAG = {"HOLES": True, "MASKED": True, "WINDOWED": True, "CAPPED": True}


@pytest.mark.parametrize(
    ("dim", "rows", "dtype", "flags"),
    [
        (128, 16, "bf16", {"SPLIT": True, **EVERY_FLAG}),
        (128, 64, "bf16", {}),
        (256, 64, "bf16", EVERY_FLAG),
        (64, 16, "fp32", {"WINDOWED": True}),
        pytest.param(64, 16, "bf16", {"SPLIT": True}, marks=WHOLE),
        pytest.param(96, 64, "fp16", EVERY_FLAG, marks=WHOLE),
    ],
)
def test_attention(dim: int, rows: int, dtype: str, flags: dict[str, bool]) -> None:
    compiled = attend(dim, rows, dtype, **flags)
    assert compiled.metadata.shared <= SHARED_MEMORY
    products = "wgmma.mma_async" if rows == 64 else "mma.sync"
    assert (products in compiled.asm["ptx"]) == (dtype != "fp32")
    assert SINGLE not in compiled.asm["ptx"]


@pytest.mark.parametrize("shape", corpus([(256, "fp32"), (256, "bf16"), (128, "fp32")], lambda _: "the largest first"))
def test_attention_fits_smaller_processors(shape: tuple[int, str], monkeypatch: pytest.MonkeyPatch) -> None:
    dim, dtype = shape
    monkeypatch.setattr(sys.modules[__name__], "ARCH", 89)
    assert attend(dim, 64, dtype).metadata.shared <= LEAST_SHARED_MEMORY


def test_writing_and_merging_and_windows() -> None:
    shape = {"HEAD_DIM": 80, "PADDED_DIM": 128}
    write = {**shape, "PAGE_SIZE": 16, "WIDTH": 6, "PADDED_WIDTH": 8}
    compile_for_h100(attention_kernels.write_rows, write, "bf16")
    merge = {**shape, "GROUP": 7, "KV_HEADS": 2, "TILE_ROWS": 16}
    for splits in (2, MOST_SPLITS):
        rows = merged_rows(splits, 16, 128)
        compiled = compile_for_h100(
            attention_kernels.merge_splits, {**merge, "PADDED_SPLITS": splits, "ROWS": rows}, "bf16"
        )
        assert compiled.metadata.shared <= SHARED_MEMORY
    window = {"PAGE_SIZE": 16, "QUERIES": 4, "PADDED_QUERIES": 4, "BLOCK_SLOTS": FIRST_BLOCK, "BLOCKS": FIRST_BLOCKS}
    compile_for_h100(attention_kernels.find_first_visible, {**window, "HOLES": True}, "bf16")


@pytest.mark.parametrize("dtype", corpus(["bf16", "fp32"], lambda _: "any"))
def test_ops(dtype: str) -> None:
    row = {"SIZE": 5120, "PADDED": 8192}
    compile_for_h100(ops_kernels.rms_norm, row, dtype, num_warps=16)
    compile_for_h100(ops_kernels.add_rms_norm, row, dtype, num_warps=16)
    angles = {"cos": f"*{dtype}", "sin": f"*{dtype}"}
    compile_for_h100(ops_kernels.rotate, {"HALF": 40, "PADDED": 64, "BLOCK": 16}, dtype, angles)
    for gelu in (False, True):
        compile_for_h100(ops_kernels.gated, {"SIZE": 14336, "BLOCK": 1024, "GELU": gelu}, dtype)


ADAPTERS = [
    *[("bf16", 16, 64), ("fp16", 256, 64), ("fp32", 64, 16)],
    *[("bf16", 16, 16), ("fp16", 256, 16), ("fp32", 64, 64)],
]
"""Format, features, rows of a tile."""


@pytest.mark.parametrize("sizes", corpus(ADAPTERS, kind=lambda sizes: sizes[0] == "fp32"), ids=str)
def test_adapters(sizes: tuple[str, int, int]) -> None:
    dtype, features, tile_rows = sizes
    kind = {"bf16": triton.language.bfloat16, "fp16": triton.language.float16, "fp32": triton.language.float32}[dtype]
    shared = {"KIND": kind, "MOST_FEATURES": features, "TILE_ROWS": tile_rows}
    types = {"rows": "*i32", "tiles": "*i32", "slots": "i32"}
    block = min(BLOCK_FEATURES, features)
    first = {"INS": 4096, "BLOCK_FEATURES": block, "BLOCK_INS": BLOCK_INS, "SPLIT_INS": 512}
    second = {"OUTS": 6144, "BLOCK_FEATURES": min(32, features), "BLOCK_OUTS": BLOCK_OUTS, "SPLITS": 8}
    for kernel, blocks in ((adapter_kernels.shrink, first), (adapter_kernels.expand, second)):
        compiled = compile_for_h100(kernel, {**shared, **blocks}, dtype, types)
        assert compiled.metadata.shared <= SHARED_MEMORY
        assert ("mma" in compiled.asm["ptx"]) == (dtype != "fp32")
        assert SINGLE not in compiled.asm["ptx"]


@pytest.mark.parametrize("dtype", corpus(["bf16", "fp32"], lambda _: "any"))
def test_recurrences(dtype: str) -> None:
    places = dict.fromkeys(("starts", "reads", "writes"), "*i64")
    wide = dict.fromkeys(("taps", "states", "decay", "beta"), "*fp32")
    sizes = dict.fromkeys(("channels", "heads", "share"), "i32")
    types = {**places, **wide, **sizes, "query": f"*{dtype}", "key": f"*{dtype}", "value": f"*{dtype}"}
    shape = {"WIDTH": 4, "BLOCK": CHANNELS}
    compile_for_h100(recurrence_kernels.convolve, {**shape, "ROWS": ROWS}, dtype, types)
    compile_for_h100(recurrence_kernels.keep_inputs, shape, dtype, types)
    state = {"K": 128, "V": 128, "PADDED": 128, "BLOCK": COLUMNS}
    compiled = compile_for_h100(recurrence_kernels.gated_delta, state, dtype, types)
    assert compiled.metadata.shared <= SHARED_MEMORY


TYPES = {
    torch.float32: "*fp32",
    torch.bfloat16: "*bf16",
    torch.int8: "*i8",
    torch.uint8: "*u8",
    torch.float8_e4m3fn: "*fp8e4nv",
}
KERNELS = ("multiply_bytes", "multiply_nibbles", "multiply_floats_of_4_bits")


class Compiled:
    """Stands for a kernel of quantized layers; compiles what it is launched with."""

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel

    def __getitem__(self, grid: object) -> Any:
        return self._launch

    def _launch(self, *args: Any, **constants: int) -> None:
        names = [name for name in self._kernel.arg_names if name not in constants]
        options = {name: constants.pop(name) for name in ("num_stages", "num_warps") if name in constants}
        kinds = (TYPES[one.dtype] if isinstance(one, torch.Tensor) else "i32" for one in args)
        types = dict(zip(names, kinds, strict=True))
        self.found = compile_for_h100(self._kernel, constants, "bf16", types, **options)


QUANTIZED = [(name, dtype, rows) for dtype in ("bfloat16", "float32") for name in KINDS for rows in (1, 100)]


def kind_of(case: tuple[str, str, int]) -> object:
    """In bfloat16 each kernel for few rows, and one for many; one in float32."""
    name, dtype, rows = case
    kernel = "floats of 4 bits" if name.endswith("fp4") else "nibbles" if "4" in name else "bytes"
    return dtype if dtype == "float32" else (rows, kernel if rows == 1 else "any")


@pytest.mark.parametrize("case", corpus(QUANTIZED, kind_of), ids=str)
def test_quantized_linears(case: tuple[str, str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    name, kind, rows = case
    dtype = getattr(torch, kind)
    kernels = [Compiled(getattr(quantized_kernels, kernel)) for kernel in KERNELS]
    for kernel, own in zip(KERNELS, kernels, strict=True):
        monkeypatch.setattr(quantized_kernels, kernel, own)
    layer = TritonLinear(random_weight(name, 128, 512, dtype), torch.zeros(128, dtype=dtype))
    layer(torch.zeros(rows, 512, dtype=dtype))
    [compiled] = [each.found for each in kernels if hasattr(each, "found")]
    assert compiled.metadata.shared <= LEAST_SHARED_MEMORY
    assert ("mma" in compiled.asm["ptx"]) == (kind == "bfloat16")
