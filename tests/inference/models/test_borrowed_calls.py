"""What programs ask of a type by transformers' code is what a dense forward of transformers gives: masks, hidden
tokens, adapters, quantized weights, scores of attention, and pages that are copied, shared, and swapped with their
states."""

from __future__ import annotations

import copy
import inspect
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from pie_inference.adapters.files import FILE, common_name
from pie_inference.adapters.peft_config import CONFIG_FILE
from pie_inference.protocol import ForwardWithScores, ForwardWithScoresResult, LoadAdapter
from pie_inference.quantization.formats import quantize
from pie_inference.quantization.names import FORMATS
from testing.worker_batches import Extend, Keys
from tests.helpers.borrowed import SEEING, SERVED, save_small
from tests.helpers.oracle import VOCAB, Oracle, assert_close, random_tokens
from tests.helpers.states import (
    StateOracle,
    assert_goes_on_from_the_host,
    assert_goes_on_within_drafts,
    assert_pages_are_shared_and_copied,
    in_first_pages,
)
from tests.helpers.tiers import corpus

OFTEN = ("gpt2", "bamba", "qwen3")
"""Types that `make test` tries, beside the first one."""


@pytest.fixture(scope="module", params=corpus([*SERVED, *SEEING], lambda kind: kind if kind in OFTEN else ""))
def oracle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> StateOracle:
    folder = tmp_path_factory.mktemp("model")
    return StateOracle(folder, save_small(request.param, folder), **OPTIONS)


OPTIONS: dict[str, Any] = {"model_code": "transformers", "host_pages": 8}


def test_masks_and_hidden_tokens(oracle: StateOracle) -> None:
    """Models with a state take none."""
    if oracle.has_states:
        return
    tokens, shown = random_tokens(8, 3), np.random.default_rng(0).random((5, 7)) < 0.6
    shown[:, 2:] = np.tril(shown[:, 2:]) | np.eye(5, dtype=np.bool_)
    counting = ("opt", "qwen2_5_omni_thinker", "qwen3_omni_moe_thinker")  # positions by the mask
    counts = oracle.reference.config.model_type in counting
    assert_close(*masked(oracle, tokens, shown, range(8) if counts else None))


def masked(
    oracle: Oracle, tokens: list[int], shown: np.ndarray, positions: range | None
) -> tuple[np.ndarray, np.ndarray]:
    """What is found and what is expected for eight tokens, of which the second is hidden once three have run, and the
    others see what is `shown`. That is less than a window: the reference takes a mask in its place."""
    driver, keys = oracle.driver(), Keys()
    [first] = driver.logprobs(Extend(keys, tokens[:3]), vocab_size=VOCAB)
    del keys.slots[1]
    [second] = driver.logprobs(Extend(keys, tokens[3:], shown), vocab_size=VOCAB)
    visible = np.tri(8, dtype=np.bool_)
    visible[3:] = np.insert(shown, 1, False, axis=1)
    return np.concatenate([first, second]), oracle.expected(tokens, visible, positions)


def test_adapters(oracle: StateOracle, tmp_path: Path) -> None:
    tokens, dense = random_tokens(20, 3), copy.copy(oracle)
    dense.reference = copy.deepcopy(oracle.reference)
    taken = put_adapter(dense, tmp_path / "adapter")
    assert taken == (oracle.reference.config.model_type != "hrm_text")
    if taken:
        [result] = oracle.driver().logprobs(Extend(Keys(), tokens), vocab_size=VOCAB, adapters=[1])
        assert_close(result, dense.expected(tokens))


def put_adapter(oracle: Oracle, folder: Path) -> bool:
    """Loads an adapter of all layers that take one, by number 1, and adds it to the reference. Whether there are any:
    layers that run several times in a forward take none."""
    taken = oracle.worker._served.adapters.layers.shapes()
    generator, tensors, named = torch.Generator().manual_seed(0), {}, list[str]()
    for name, module in oracle.reference.named_modules():
        if common_name(name) in taken and isinstance(module, (nn.Linear, Conv1D)):
            weight = by_outputs(module)
            down = torch.randn(4, weight.shape[1], generator=generator) * weight.shape[1] ** -0.5
            up = torch.randn(len(weight), 4, generator=generator) / 4
            named.append(name)
            tensors[f"base_model.model.{name}.lora_A.weight"] = down
            tensors[f"base_model.model.{name}.lora_B.weight"] = up
            weight += up @ down
    assert len(named) == len(taken)
    if named:
        folder.mkdir()
        save_file(tensors, folder / FILE)
        turned = oracle.reference.config.model_type == "gpt2"  # so PEFT says
        given = {"peft_type": "LORA", "r": 4, "lora_alpha": 4, "target_modules": named, "fan_in_fan_out": turned}
        (folder / CONFIG_FILE).write_text(json.dumps(given))
        assert not oracle.worker.load_adapter(LoadAdapter(1, str(folder))).error
    return bool(named)


def by_outputs(module: nn.Linear | Conv1D) -> Tensor:
    """The weight of a module as [out_features, in_features], in the same memory."""
    weight = module.weight.data
    return weight.t() if isinstance(module, Conv1D) else weight


def test_int8(oracle: StateOracle) -> None:
    """The reference multiplies by the numbers that the quantized weights stand for."""
    from pie_inference.models.borrowed.filling.weights import PLAIN, ROUTERS
    from pie_inference.models.borrowed.parts import batched_experts_of, experts_of, is_transposed, stacks_of

    dense, tokens = copy.deepcopy(oracle.reference), random_tokens(40, 4)
    head, exact, tied = dense.get_output_embeddings(), True, getattr(dense, "all_tied_weights_keys", {})
    for name, module in dense.named_modules():
        if type(module) not in (nn.Linear, Conv1D) or (f"{name}.weight" in tied and module.bias is not None):
            continue
        if module is head or not name.endswith((*ROUTERS, *PLAIN)):
            weight = in_int8(by_outputs(module))
            module.weight = nn.Parameter(weight.t() if isinstance(module, Conv1D) else weight)
            exact = False
    for module in (experts_of(dense) | batched_experts_of(dense)).values():
        for part in stacks_of(module):
            stack = module.get_parameter(part)
            by_rows = stack.transpose(1, 2) if is_transposed(module) else stack
            by_rows.data.copy_(torch.stack([in_int8(each) for each in by_rows.data]))
    options = {**OPTIONS, "quantization": "int8"}
    quantized, keys = StateOracle(oracle.folder, dense, **options), Keys()
    driver = quantized.driver()
    parts = [driver.logprobs(Extend(keys, part), vocab_size=VOCAB)[0] for part in (tokens[:30], tokens[30:])]
    found = np.concatenate(parts)
    tolerance = 5e-4 if oracle.has_states else 1e-4
    np.testing.assert_allclose(found, quantized.expected(tokens), rtol=tolerance, atol=tolerance)
    assert exact or np.abs(found - oracle.expected(tokens)).max() > 1e-3


def in_int8(weight: Tensor) -> Tensor:
    """A weight [N, K] as its quantized form says it."""
    return quantize([weight.detach()], FORMATS["int8"], torch.float32, weight.device).dequantize(torch.float32)


def test_scores(oracle: StateOracle) -> None:
    """Of the second part of a text: over its keys, the weights of its queries, as the mean of heads and layers."""
    tokens, driver, keys = random_tokens(30, 5), oracle.driver(), Keys()
    driver.logprobs(Extend(keys, tokens[:20]), vocab_size=VOCAB)
    embed, forward = driver.forward_batch([Extend(keys, tokens[20:])])
    if oracle.has_states:
        forward = in_first_pages(forward)
    found = driver.ask(ForwardWithScoresResult, embed, ForwardWithScores(**msgspec.structs.asdict(forward))).scores
    np.testing.assert_allclose(found, dense_scores(oracle.reference, tokens, 20), atol=1e-4)


def dense_scores(reference: Any, tokens: list[int], first: int) -> np.ndarray:
    with torch.no_grad(), told_without_sinks(reference):
        output = reference(torch.tensor([tokens]), output_attentions=True, use_cache=False)
    square = (len(tokens), len(tokens))  # other layers than those of attention tell other things
    layers = [each for each in getattr(output, "attentions", None) or () if each is not None]
    scores = [each[0, :, first:].sum(1) for each in layers if each.shape[2:] == square]
    if not scores:
        return np.zeros(len(tokens), np.float32)
    found: np.ndarray = torch.stack(scores).mean((0, 1)).numpy()
    return found


@contextmanager
def told_without_sinks(reference: Any) -> Iterator[None]:
    """Within it, weights that code tells leave out what sinks take. Some code takes it off the results instead: these
    are as much shorter than the sums of values."""
    code: Any = sys.modules[type(reference).__module__]
    plain: Any = getattr(code, "eager_attention_forward", None)
    if "lse - module.sinks" not in inspect.getsource(code):
        yield
        return

    def attend(
        module: Any, query: Tensor, key: Tensor, value: Tensor, *given: Any, **more: Any
    ) -> tuple[Tensor, Tensor]:
        output, weights = plain(module, query, key, value, *given, **more)
        sums = weights @ value.repeat_interleave(query.shape[1] // value.shape[1], 1)
        return output, weights * (output.transpose(1, 2).norm(dim=-1) / sums.norm(dim=-1))[..., None]

    code.eager_attention_forward = attend
    try:
        yield
    finally:
        code.eager_attention_forward = plain


def test_pages_that_are_shared_copied_and_swapped(oracle: StateOracle) -> None:
    assert_pages_are_shared_and_copied(oracle)
    assert_goes_on_from_the_host(oracle)
    if oracle.has_states:
        assert_goes_on_within_drafts(oracle)
