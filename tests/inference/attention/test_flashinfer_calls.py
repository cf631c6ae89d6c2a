"""How we call FlashInfer fits its real signatures, of the versions that were recorded and of the one that is installed.

`python tests/test_flashinfer_calls.py` prints those of the installed version, to be recorded in
`flashinfer_signatures.json`.
"""

from __future__ import annotations

import importlib
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from pie_inference.attention.flashinfer.pages import FlashInferAttention
from pie_inference.device.flashinfer_library import DECODE_GROUPS, FlashInfer
from testing.attention_oracle import CASES, Problem, filled_cache, run
from tests.helpers.fake_flashinfer import Call, calls, fake_flashinfer

RECORDED: Mapping[str, Mapping[str, Sequence[Sequence[Any]]]] = json.loads(
    (Path(__file__).parent / "flashinfer_signatures.json").read_text()
)
CPU = torch.device("cpu")


def parameters(function: Callable[..., Any]) -> list[tuple[str, str, bool]]:
    """Name, kind, and whether there is a default, of each."""
    return [
        (one.name, one.kind.name, one.default is not inspect.Parameter.empty)
        for one in inspect.signature(function).parameters.values()
    ]


def signatures(library: FlashInfer) -> dict[str, list[tuple[str, str, bool]]]:
    """Of all that we call. Decode passes what `plan` is given on to `_plan_impl`, which has the names."""
    decode: Any = library.decode_wrapper
    prefill: Any = library.prefill_wrapper
    return {
        "decode_wrapper.__init__": parameters(decode.__init__),
        "decode_wrapper.reset_workspace_buffer": parameters(decode.reset_workspace_buffer),
        "decode_wrapper.plan": parameters(decode._plan_impl),
        "decode_wrapper.run": parameters(decode.run),
        "prefill_wrapper.__init__": parameters(prefill.__init__),
        "prefill_wrapper.plan": parameters(prefill.plan),
        "prefill_wrapper.run": parameters(prefill.run),
        "append": parameters(library.append),
    }


def assert_fits(call: Call, recorded: Sequence[Sequence[Any]]) -> None:
    empty = inspect.Parameter.empty
    signature = inspect.Signature(
        [
            inspect.Parameter(name, getattr(inspect.Parameter, kind), default=None if optional else empty)
            for name, kind, optional in recorded
        ]
    )
    has_self = recorded[0][0] == "self"
    signature.bind(*[None] * (call.positional + has_self), **dict.fromkeys(call.keywords))


@pytest.fixture(scope="module")
def made_calls() -> set[Call]:
    """Everything that attention calls."""
    calls.clear()
    for case in ("mixed", "masks and windows"):
        run(Problem(CASES[case], torch.float32), _backend, CPU)
    problem = Problem(CASES["decode one"], torch.float32)
    _backend(filled_cache(problem, CPU), 4, problem.case.specs).graph_plan(2).update(problem.batch)
    return set(calls)


def _backend(cache: Any, num_heads: int, specs: Any) -> FlashInferAttention:
    return FlashInferAttention(cache, num_heads, specs, fake_flashinfer())


@pytest.mark.parametrize("version", RECORDED)
def test_calls_fit_recorded_signatures(version: str, made_calls: set[Call]) -> None:
    assert {call.function for call in made_calls} == set(RECORDED[version])
    for call in made_calls:
        assert_fits(call, RECORDED[version][call.function])


def test_a_call_that_does_not_fit_is_noticed() -> None:
    with pytest.raises(TypeError, match="windows_left"):
        assert_fits(Call("decode_wrapper.plan", 7, ("windows_left",)), RECORDED["0.6.18.post1"]["decode_wrapper.plan"])


def test_calls_fit_what_is_installed(made_calls: set[Call]) -> None:
    pytest.importorskip("flashinfer", exc_type=ImportError)
    from pie_inference.device.flashinfer_library import load

    real = signatures(load())
    for call in made_calls:
        assert_fits(call, real[call.function])


def test_the_installed_version_names_modules_as_we_do() -> None:
    pytest.importorskip("flashinfer", exc_type=ImportError)
    from pie_inference.device import flashinfer_library as library

    key = library.ModuleKey(torch.bfloat16, 128, False, False)
    assert library._has_fa3(key) in (True, False)
    assert all(hasattr(importlib.import_module("flashinfer.jit.env"), name) for name in ("FLASHINFER_AOT_DIR",))
    assert 5 not in DECODE_GROUPS


if __name__ == "__main__":
    from pie_inference.device.flashinfer_library import load as _load

    print(json.dumps({_load().version: signatures(_load())}))
