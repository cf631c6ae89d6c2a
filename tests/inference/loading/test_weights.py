"""Loading: what is refused before weights are read, what it costs in memory, and how it is told."""

from __future__ import annotations

import io
import json
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from pie_inference.assembly.load import load
from pie_inference.assembly.plan import make_plan, read_model
from pie_inference.config import WorkerConfig
from pie_inference.device import machine
from pie_inference.device.machine import free_bytes
from pie_inference.device.ranks import Ranks, SingleRank, run_ranks
from pie_inference.errors import CheckpointError, ConfigError
from pie_inference.loading.checkpoint import INDEX_FILE, Checkpoint
from pie_inference.loading.hub import find_folder
from pie_inference.loading.progress import LoadProgress
from pie_inference.loading.weight_sizes import SMALL_HEADROOM, check_fit, sizes, weight_bytes
from pie_inference.loading.weights import Block, WeightLoader
from pie_inference.ops.torch_ops import TorchOps
from pie_inference.protocol import RunWave
from pie_inference.quantization.choose import Quantizer, choose_quantizer
from pie_inference.quantization.names import FORMATS
from pie_inference.serving.worker import Worker
from testing.checkpoints import make_checkpoint
from testing.worker_batches import Driver, Extend, Keys, ints, sample_batch
from tests.helpers.families import save_reference

CPU = torch.device("cpu")
NAME = "model.layers.0.mlp.up_proj.weight"


def loader(folder: Path, dtype: torch.dtype = torch.float32, quantizer: Quantizer | None = None) -> WeightLoader:
    return WeightLoader(Checkpoint(folder), TorchOps(CPU, dtype), dtype, CPU, SingleRank(), quantizer)


def change_index(folder: Path, name: str, file: object) -> None:
    index = json.loads((folder / INDEX_FILE).read_text())
    index["weight_map"][name] = file
    (folder / INDEX_FILE).write_text(json.dumps(index))


@pytest.mark.parametrize("file", ["../secret.safetensors", "/etc/x.safetensors", "a/b.safetensors", 7])
def test_an_index_does_not_lead_elsewhere(file: object, tmp_path: Path) -> None:
    change_index(make_checkpoint(tmp_path, shards=2), NAME, file)
    with pytest.raises(CheckpointError, match=rf"index.json: tensor '{NAME}' points to .* not a file of this folder"):
        Checkpoint(tmp_path)


def test_a_tensor_that_the_index_invents_is_named(tmp_path: Path) -> None:
    change_index(make_checkpoint(tmp_path, shards=2), "invented", "model-00001-of-00002.safetensors")
    with pytest.raises(CheckpointError, match=r"model-00001-of-00002.safetensors: tensor 'invented' is missing"):
        Checkpoint(tmp_path).find("invented")


def test_an_index_that_is_missing_is_named(tmp_path: Path) -> None:
    (make_checkpoint(tmp_path, shards=2) / INDEX_FILE).unlink()
    with pytest.raises(CheckpointError, match=r"there is no model.safetensors.index.json, which names the shard of"):
        Checkpoint(tmp_path)


def test_a_truncated_shard_is_named_before_weights_are_read(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, shards=2)
    path = tmp_path / "model-00002-of-00002.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=r"00002-of-00002.safetensors: unreadable: .*; copy or download it again"):
        Checkpoint(tmp_path)
    path.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n")
    with pytest.raises(CheckpointError, match="a pointer of Git LFS: `git lfs pull`"):
        Checkpoint(tmp_path)
    path.unlink()
    with pytest.raises(CheckpointError, match=r"model.safetensors.index.json names it, and it is not there"):
        Checkpoint(tmp_path)


@pytest.mark.parametrize("shards", [1, 2])
def test_a_model_that_is_stored_without_its_head_has_the_usual_names(shards: int, tmp_path: Path) -> None:
    """Models for embeddings are stored so: their names lack `model.`, and config.json may name the model alone."""
    make_checkpoint(tmp_path, shards=shards)
    if shards == 1:
        config = json.loads((tmp_path / "config.json").read_text())
        (tmp_path / "config.json").write_text(json.dumps(config | {"architectures": ["LlamaModel"]}))
    whole = {stored.name: stored.shape for stored in Checkpoint(tmp_path).tensors()}
    before = Checkpoint(tmp_path).read(NAME, whole[NAME]).clone()
    for path in tmp_path.glob("*.safetensors"):
        kept = {name.removeprefix("model."): tensor.clone() for name, tensor in load_file(path).items()}
        save_file({name: tensor for name, tensor in kept.items() if name != "lm_head.weight"}, path)
    if (tmp_path / INDEX_FILE).exists():
        weight_map = json.loads((tmp_path / INDEX_FILE).read_text())["weight_map"]
        stored = {name.removeprefix("model."): file for name, file in weight_map.items() if name != "lm_head.weight"}
        (tmp_path / INDEX_FILE).write_text(json.dumps({"weight_map": stored}))
    bare = Checkpoint(tmp_path)
    assert {stored.name: stored.shape for stored in bare.tensors()} == {
        name: shape for name, shape in whole.items() if name != "lm_head.weight"
    }
    assert torch.equal(bare.read(NAME, before.shape), before)
    served = Worker(WorkerConfig(tmp_path, "model", dtype="float32", device="cpu", kernels="torch", pages=64))
    assert "get_embedding" in served.describe()[0].calls
    assert "sample" not in served.describe()[0].calls
    driver = Driver(served.run, "model")
    driver.run(*driver.forward_batch([Extend(Keys(), [1, 2, 3])]))
    [failure] = served.run(RunWave(1, "model", (sample_batch(ints([driver.outputs])),))).failures
    assert "no output head" in failure.message


def test_other_formats_are_refused_by_name(tmp_path: Path) -> None:
    (make_checkpoint(tmp_path) / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"only pytorch_model.bin; convert it"):
        find_folder(tmp_path)
    with pytest.raises(CheckpointError, match=r"no model.safetensors: the weights are missing"):
        Checkpoint(tmp_path)
    (tmp_path / "pytorch_model.bin").rename(tmp_path / "weights.safetensors")
    with pytest.raises(CheckpointError, match=r"only weights.safetensors: if that has all weights, give it this name"):
        Checkpoint(tmp_path)


def test_integers_are_no_weights(tmp_path: Path) -> None:
    tensors = load_file(make_checkpoint(tmp_path) / "model.safetensors")
    save_file({**tensors, NAME: tensors[NAME].to(torch.int32)}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=rf"model.safetensors: tensor '{NAME}' is stored as I32, expected F64"):
        Worker(WorkerConfig(tmp_path, "model", pages=4))


@pytest.mark.parametrize("source", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_any_source_serves_in_any_dtype(source: torch.dtype, tmp_path: Path) -> None:
    make_checkpoint(tmp_path, dtype=source)
    stored = load_file(tmp_path / "model.safetensors")[NAME]
    for dtype in (torch.float32, torch.bfloat16):
        linear = loader(tmp_path, dtype).linear([Block("model.layers.0.mlp.up_proj", 96)], 64)
        rows = torch.eye(64).to(dtype)
        assert torch.equal(linear(rows).T, stored.to(dtype))


def test_a_tied_head_takes_the_table_that_is_there(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, tie_embeddings=True)
    weights = loader(tmp_path, torch.bfloat16)
    table = weights.tensor("model.embed_tokens.weight", 272, 64)
    head = weights.linear([Block("model.embed_tokens", 272)], 64, role="head")
    rows = torch.randn(3, 64).bfloat16()
    torch.testing.assert_close(head(rows), rows @ table.T)


@pytest.mark.parametrize("name", FORMATS)
def test_the_head_of_a_quantized_model_has_8_bits_and_a_router_all(name: str, tmp_path: Path) -> None:
    make_checkpoint(tmp_path, hidden_size=128)
    weights = loader(tmp_path, torch.float32, choose_quantizer(name, CPU, torch.float32))
    block, exact = Block("lm_head", 272), Checkpoint(tmp_path).read("lm_head.weight", (272, 128)).T
    head, router = (weights.linear([block], 128, role=role)(torch.eye(128)) for role in ("head", "router"))
    steps = exact.abs().amax(0) / 127
    torch.testing.assert_close(head / steps, (head / steps).round(), rtol=0, atol=1e-3)
    assert ((head - exact).abs() < 0.51 * steps).all()
    assert torch.equal(router, exact)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(("dtype", "quantization"), [("float32", "none"), *(("bfloat16", each) for each in FORMATS)])
def test_memory_is_foreseen(dtype: str, quantization: str, tied: bool, tmp_path: Path) -> None:
    make_checkpoint(tmp_path, hidden_size=128, intermediate_size=256, tie_embeddings=tied)
    config = WorkerConfig(
        tmp_path, "model", dtype=dtype, quantization=quantization, device="cpu", kernels="torch", pages=4
    )
    expected = weight_bytes(Checkpoint(tmp_path).tensors(), getattr(torch, dtype), quantization)
    assert Worker(config).describe()[0].weight_bytes == expected


@pytest.mark.parametrize(
    ("architecture", "sizes"),
    [("GPT2LMHeadModel", {"n_embd": 128}), ("GPTNeoXForCausalLM", {}), ("MambaForCausalLM", {})],
    ids=str,
)
def test_memory_of_tables_by_other_names_is_foreseen(architecture: str, sizes: dict[str, int], tmp_path: Path) -> None:
    """Within what their vectors take, which are never shared or quantized."""
    save_reference(tmp_path, architecture, hidden_size=128, vocab_size=3000, **sizes)
    config = WorkerConfig(tmp_path, "model", dtype="bfloat16", quantization="int8", device="cpu", pages=4)
    expected = weight_bytes(Checkpoint(tmp_path).tensors(), torch.bfloat16, "int8")
    assert Worker(config).describe()[0].weight_bytes == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize("code", ["own", "transformers"])
def test_memory_of_a_table_that_is_stored_as_the_head_is_foreseen(code: str, tmp_path: Path) -> None:
    make_checkpoint(tmp_path, tie_embeddings=True)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["lm_head.weight"] = tensors.pop("model.embed_tokens.weight")
    save_file(tensors, tmp_path / "model.safetensors")
    config = WorkerConfig(tmp_path, "model", dtype="float32", device="cpu", kernels="torch", pages=4, model_code=code)
    expected = weight_bytes(Checkpoint(tmp_path).tensors(), torch.float32, "none")
    assert Worker(config).describe()[0].weight_bytes == expected


@pytest.mark.parametrize("tied", [False, True])
def test_memory_of_each_rank_is_foreseen(tied: bool, tmp_path: Path) -> None:
    """Each has the whole table of tokens and all norms."""
    make_checkpoint(tmp_path, hidden_size=128, intermediate_size=256, tie_embeddings=tied)

    def loaded(ranks: Ranks) -> tuple[int, int]:
        config = WorkerConfig(tmp_path, "model", dtype="float32", device="cpu", kernels="torch", pages=4)
        plan = make_plan(config, read_model(config), ranks)
        return plan.weight_bytes, load(plan).description.weight_bytes // ranks.size

    for foreseen, taken in run_ranks(2, loaded):
        assert foreseen == taken


def test_pages_of_a_gpu_leave_room_for_embeds(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, hidden_size=512)
    config = WorkerConfig(tmp_path, "model", dtype="float32", device="cpu")
    plan = replace(make_plan(config, read_model(config), SingleRank()), device=torch.device("cuda"))
    embeds = plan.num_embeds * 512 * 4
    free = 2 * embeds
    assert plan.num_pages(free) * plan.kv_shape.page_bytes + embeds < free


def test_layers_that_draft_tokens_are_not_counted(tmp_path: Path) -> None:
    make_checkpoint(tmp_path)
    config = WorkerConfig(tmp_path, "model", device="cpu")
    count = read_model(config).checkpoint.num_parameters()
    tensors = load_file(tmp_path / "model.safetensors")
    drafts = {name: torch.ones(64, 128) for name in ("mtp.fc.weight", "model.layers.2.eh_proj.weight")}
    save_file(tensors | drafts, tmp_path / "model.safetensors")
    config_json = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config_json | {"num_nextn_predict_layers": 1}))
    assert read_model(config).checkpoint.num_parameters() == count


def test_weights_that_do_not_fit_are_refused_with_what_would(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, hidden_size=1024, intermediate_size=4096, dtype=torch.bfloat16)
    checkpoint = Checkpoint(tmp_path)
    by_form = {(size.dtype, size.quantization): size.nbytes for size in sizes(checkpoint)}
    free = SMALL_HEADROOM + by_form["bfloat16", "none"] + by_form["bfloat16", "int8"]
    check_fit(checkpoint, torch.bfloat16, "int8", free)
    message = r"in bfloat16, and \d{3} MB are free; these would fit: .*--quantization int8 \([\d.]+ MB\), .*int4"
    with pytest.raises(ConfigError, match=message):
        check_fit(checkpoint, torch.bfloat16, "none", free)
    check_fit(checkpoint, torch.bfloat16, "none", free, ranks=2)
    with pytest.raises(ConfigError, match="they would not fit in any form"):
        check_fit(checkpoint, torch.bfloat16, "none", 1000)


def test_free_memory_is_what_control_groups_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 0 < free_bytes(CPU) < 1 << 50
    monkeypatch.setattr(machine, "memory_left", lambda: [700, 500])
    assert free_bytes(CPU) == 500


def test_quick_loading_is_silent() -> None:
    stream = io.StringIO()
    told = LoadProgress(100, stream)
    told.advance(100)
    told.finish()
    assert stream.getvalue() == ""


def test_slow_loading_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    stream = io.StringIO()
    told = LoadProgress(8_000_000_000, stream)
    for seconds in (0.5, 2.0, 2.1, 4.0):
        now[0] = seconds
        told.advance(2_000_000_000)
    told.advance(1_000_000_000)  # the embedding once more, as the output head
    told.finish()
    assert stream.getvalue() == (
        "loading weights:  50%, 4 GB of 8 GB, 2 GB/s\r"
        "loading weights: 100%, 8 GB of 8 GB, 2 GB/s\r"
        "loaded weights: 8 GB in 4.0 s, 2 GB/s\n"
    )


def test_what_is_small_is_told_in_small_units(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    stream = io.StringIO()
    told = LoadProgress(19_900_000, stream)
    now[0] = 2.0
    told.advance(10_000_000)
    assert stream.getvalue() == "loading weights:  50%, 10 MB of 19.9 MB, 5 MB/s\r"
