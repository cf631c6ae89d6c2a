"""The worker: checkpoints that cannot be served, batches that break the protocol, options, and what waves do."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from pie_inference.config import WorkerConfig, parse_options
from pie_inference.errors import CheckpointError, ConfigError
from pie_inference.protocol import (
    Forward,
    GetLogprobs,
    GetLogprobsResult,
    GetNextDist,
    GetNextDistResult,
    RunWave,
    SampleResult,
)
from pie_inference.serving.worker import Worker
from pie_inference.testing import byte_tokenizer
from testing.checkpoints import make_checkpoint
from testing.worker_batches import (
    Driver,
    Extend,
    Keys,
    copy_batch,
    dist_batch,
    embed_batch,
    indptr,
    ints,
    sample_batch,
)
from tests.helpers.tree import ROOT

OPTIONS = ["--endpoint", "inproc://x", "--model", "m", "--name", "n"]


def make_worker(folder: Path, **changes: Any) -> Worker:
    return Worker(WorkerConfig(folder, "model", **{"pages": 64, "embeds": 2048, "dtype": "float32", **changes}))


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Worker:
    return make_worker(make_checkpoint(tmp_path_factory.mktemp("model")))


def change_config(**changes: object) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, **changes}))

    return change


def change_tensor(name: str, value: torch.Tensor | None) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        del tensors[name]
        save_file(tensors | ({} if value is None else {name: value}), folder / "model.safetensors")

    return change


def truncate(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])


def remove(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def write(name: str, text: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / name).write_text(text)

    return change


Q_PROJ = "model.layers.1.self_attn.q_proj.weight"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (change_tensor(Q_PROJ, None), rf"tensor '{Q_PROJ}' is missing"),
        (
            change_tensor(Q_PROJ, torch.ones(3, 4)),
            rf"model.safetensors: tensor '{Q_PROJ}' has shape \[3, 4\], expected",
        ),
        (truncate, r"model.safetensors: unreadable"),
        (remove("model.safetensors"), r"there is no model.safetensors: the weights are missing"),
        (remove("config.json"), r"config.json: there is no such file"),
        (remove("tokenizer.json"), r"tokenizer.json: unreadable"),
        (write("config.json", "{"), r"config.json: unreadable"),
        (write("config.json", "[]"), r"config.json: not a JSON object"),
        (
            change_config(architectures=["GizmoForCausalLM"]),
            r"GizmoForCausalLM is not supported: Pie has no such family, and transformers .* has LlamaForCausalLM",
        ),
        (change_config(rope_parameters={"rope_type": "spiral", "factor": 2.0}), r"'spiral' is not supported, only"),
        (change_config(rope_parameters={"rope_type": "linear"}), r"rope type 'linear' needs a 'factor' of"),
        (change_config(hidden_act="spiral"), r"hidden_act 'spiral'"),
    ],
    ids=lambda value: value if isinstance(value, str) else "files",  # the same in every process that collects them
)
def test_broken_checkpoints_are_named(change: Callable[[Path], None], message: str, tmp_path: Path) -> None:
    change(make_checkpoint(tmp_path))
    with pytest.raises(CheckpointError, match=message):
        make_worker(tmp_path)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, shards=2)
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"model-00002-of-00002.safetensors: unreadable"):
        make_worker(tmp_path)


def test_the_description_tells_what_the_files_say(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, dtype=torch.bfloat16)
    write("generation_config.json", '{"eos_token_id": [5, 6]}')(tmp_path)
    write("chat_template.jinja", "a template")(tmp_path)
    [description] = make_worker(tmp_path, dtype="auto", device="cpu", pages=None, embeds=None).describe()
    assert (description.dtype, description.stop_tokens) == ("float32", (5, 6, byte_tokenizer.END))
    assert description.tokenizer_config["chat_template"] == "a template"
    assert description.page_bytes == 2 * 2 * 2 * 16 * 16 * 4  # layers, K and V, heads, slots, dimensions, bytes
    assert 1 <= description.num_pages <= 65536
    assert description.weight_bytes == 4 * sum(t.numel() for t in load_file(tmp_path / "model.safetensors").values())


def failure(worker: Worker, *batches: Any) -> str:
    [failure] = worker.run(RunWave(1, "model", batches)).failures
    return failure.message


def forward_of(**changes: object) -> Forward:
    _, forward = Driver(lambda wave: pytest.fail("not run"), "model").forward_batch([Extend(Keys(), [1, 2, 3])])
    return msgspec.structs.replace(forward, **changes)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (embed_batch(ints([1]), ints([272])), "token 272 does not exist; they are 0 to 271"),
        (embed_batch(ints([-1]), ints([0])), "embed -1 does not exist"),
        (embed_batch(ints([1]), ints([-70000])), "token slot 69999 does not exist"),
        (copy_batch(ints([0]), ints([64 * 16])), "KV slot 1024 does not exist"),
        (forward_of(kv_pages=ints([64])), "page 64 does not exist"),
        (forward_of(kv_ends=ints([17])), "keys 0 to 17 leave their page"),
        (forward_of(kv_ends=ints([2])), "more queries than keys: 3 queries, 2 keys"),
        (forward_of(q_slots=ints([16, 17, 5000])), "KV slot 5000"),
        (forward_of(mask_indptr=np.array([0, 1]), mask_bits=np.zeros(1, np.uint8)), "the mask has 1 bytes"),
        (GetNextDist(ints([1]), ints([273]), np.ones(1, np.float32)), "k must be 1 to 272"),
        (GetLogprobs(ints([1]), ints([0, 1]), ints([300])), "token 300"),
        (sample_batch(ints([1]), allowed_rows=ints([0]), allowed=np.zeros((1, 34), np.uint8)), "allows no token"),
        (sample_batch(ints([1]), allowed_rows=ints([0]), allowed=np.ones((1, 4), np.uint8)), "a mask has 34 bytes"),
        (sample_batch(ints([1]), allowed_rows=ints([-1, 0]), allowed=np.ones((1, 34), np.uint8)), "allowed_rows has 2"),
        (sample_batch(ints([1]), matchers=np.zeros(2, np.int64)), "matchers has 2 elements for 1 commands"),
        (msgspec.structs.replace(sample_batch(ints([1])), uniform=None), "sample: "),
        (forward_of(q_indptr=np.array([0, 3.0])), "has float64 numbers, not integers"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_batches_that_break_the_protocol_are_answered(worker: Worker, batch: Any, message: str) -> None:
    assert message in failure(worker, batch)
    assert worker.run(RunWave(2, "model", ())).results == ()


def test_an_unknown_model_is_named(worker: Worker) -> None:
    done = worker.run(RunWave(1, "other", (embed_batch(ints([1, 2]), ints([1, 2]), [1, 1]), dist_batch(ints([1]), 2))))
    assert done.results == (None, None)
    assert [(failure.batch, failure.command) for failure in done.failures] == [(0, 0), (0, 1), (1, 0)]
    assert done.failures[0].message == "this worker serves 'model', not 'other'"


def test_a_sampled_token_can_be_embedded_before_it_is_known(worker: Worker) -> None:
    prompt = [10, 20, 30]
    expected = Driver(worker.run, "model").generate(Keys(), prompt, 2)
    driver, keys = Driver(worker.run, "model"), Keys()
    embed, forward = driver.forward_batch([Extend(keys, prompt)])
    sample = sample_batch(ints([driver.outputs + 2]), token_slots=ints([40]))
    _, later = driver.forward_batch([Extend(keys, [0])])
    by_reference = embed_batch(ints([0]), ints([-41]))
    first = driver.ask(SampleResult, embed, forward, sample)
    second = driver.ask(SampleResult, by_reference, later, sample_batch(ints([driver.outputs])))
    assert [first.tokens[0], second.tokens[0]] == expected


def test_sampling_penalties_and_masks_reach_the_logits(worker: Worker) -> None:
    driver = Driver(worker.run, "model")
    driver.run(*driver.forward_batch([Extend(Keys(), [1, 2, 3])]))
    embed = ints([driver.outputs + 2])
    dist = driver.ask(GetNextDistResult, dist_batch(embed, 3))
    best, second, third = (int(token) for token in dist.tokens)
    driver.run(sample_batch(embed, token_slots=ints([7])))
    penalized = sample_batch(
        embed, recent_indptr=ints([0, 2]), recent=ints([-8, second]), presence=np.full(1, 1e6, np.float32)
    )
    assert driver.ask(SampleResult, penalized).tokens.tolist() == [third]
    allowed = np.packbits(np.arange(272) == second, bitorder="little")[None]
    masked = driver.ask(SampleResult, sample_batch(embed, allowed_rows=ints([0]), allowed=allowed))
    assert masked.tokens.tolist() == [second]
    assert best not in (second, third)


def test_a_bias_reaches_the_logits_and_log_probabilities_do_not_change(worker: Worker) -> None:
    driver = Driver(worker.run, "model")
    driver.run(*driver.forward_batch([Extend(Keys(), [1, 2, 3])]))
    embeds = ints([driver.outputs + 2, driver.outputs + 1, driver.outputs + 2])
    dist = driver.ask(GetNextDistResult, dist_batch(embeds, 272))
    order, probabilities = dist.tokens.reshape(3, 272), dist.probabilities.reshape(3, 272)
    bias = {"bias_tokens": ints([order[0, 9]]), "bias_values": np.full(1, 100, np.float32)}
    batch = sample_batch(embeds, bias_indptr=ints([0, 1, 1, 1]), alternatives=ints([2, -1, 0]), **bias)
    result = driver.ask(SampleResult, batch)
    assert result.tokens.tolist() == [order[0, 9], order[1, 0], order[2, 0]]
    assert result.score_indptr is not None
    assert result.scored is not None
    assert result.logprobs is not None
    assert result.score_indptr.tolist() == [0, 3, 3, 4]
    assert result.scored.tolist() == [order[0, 9], *order[0, :2], order[2, 0]]
    wanted = [*probabilities[0, [9, 0, 1]], probabilities[2, 0]]
    assert np.exp(result.logprobs).tolist() == pytest.approx(wanted, rel=1e-4)


def test_a_row_that_fails_leaves_others_their_log_probabilities(worker: Worker) -> None:
    driver = Driver(worker.run, "model")
    driver.run(*driver.forward_batch([Extend(Keys(), [1, 2, 3])]))
    embeds = ints([driver.outputs + 2] * 3)
    bias = {"bias_tokens": ints([999]), "bias_values": np.zeros(1, np.float32)}
    batch = sample_batch(embeds, bias_indptr=ints([0, 0, 1, 1]), alternatives=ints([1, 1, 0]), **bias)
    done = worker.run(RunWave(99, "model", (batch,)))
    assert [(one.batch, one.command) for one in done.failures] == [(0, 1)]
    (result,) = done.results
    assert isinstance(result, SampleResult)
    assert result.score_indptr is not None
    assert result.score_indptr.tolist() == [0, 2, 2, 3]


def test_distributions_of_different_widths(worker: Worker) -> None:
    driver = Driver(worker.run, "model")
    driver.run(*driver.forward_batch([Extend(Keys(), [1, 2, 3])]))
    embeds = ints([driver.outputs, driver.outputs + 1])
    batch = GetNextDist(embeds, ints([2, 272]), np.ones(2, np.float32))
    score = GetLogprobs(embeds, indptr([1, 2]), ints([5, 5, 6]))
    dist, scores = driver.ask(GetNextDistResult, batch), driver.ask(GetLogprobsResult, score)
    assert dist.indptr.tolist() == [0, 2, 274]
    narrow, wide = np.split(dist.probabilities, [2])
    np.testing.assert_allclose([narrow.sum() + dist.rest[0], wide.sum()], 1, rtol=1e-5)
    at = {int(token): float(p) for token, p in zip(dist.tokens[2:], wide, strict=True)}
    np.testing.assert_allclose(np.exp(scores.logprobs[1:]), np.array([at[5], at[6]]), rtol=1e-4)


@pytest.mark.parametrize("size", [8, 32])
def test_tokens_do_not_depend_on_the_page_size(size: int, tmp_path: Path) -> None:
    make_checkpoint(tmp_path)
    prompt = list(range(5, 45))
    texts = [
        Driver(make_worker(tmp_path, page_size=pages).run, "model", pages).generate(Keys(), prompt, 20)
        for pages in (16, size)
    ]
    assert texts[0] == texts[1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--page-size", "7"], "--page-size must be 8 to 32, not 7"),
        (["--dtype", "float16"], "--dtype must be one of auto, float32, bfloat16, float64, not 'float16'"),
        (["--pages", "0"], "--pages must be at least 1, not 0"),
        (["--threads", "-1"], "--threads must be at least 1"),
    ],
)
def test_wrong_options_are_refused(options: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_options([*OPTIONS, *options])


def test_options_become_the_configuration() -> None:
    options = parse_options([*OPTIONS, "--pages", "5", "--parent", "7", "--dtype", "bfloat16"])
    assert (options.place.endpoint, options.parent) == ("inproc://x", 7)
    assert options.config == WorkerConfig(Path("m"), "n", pages=5, dtype="bfloat16")


def test_importing_the_protocol_imports_no_torch() -> None:
    code = "import sys, pie_inference.protocol; assert not {'torch', 'zmq'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_a_worker_imports_no_transformers(tmp_path: Path) -> None:
    make_checkpoint(tmp_path)
    code = (
        "import sys; from pathlib import Path; from pie_inference.config import WorkerConfig\n"
        "from pie_inference.serving.worker import Worker\n"
        f"Worker(WorkerConfig(Path({str(tmp_path)!r}), 'm', pages=4))\n"
        "assert not {'transformers', 'torch._dynamo', 'torch._inductor'} & set(sys.modules), sorted(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
