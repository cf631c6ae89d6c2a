"""A broken adapter is refused with words that help, and leaves everything as it was."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from pie_inference.adapters import adapters, patterns
from pie_inference.adapters.files import FILE
from pie_inference.adapters.folder import AdapterFolder
from pie_inference.adapters.peft_config import CONFIG_FILE
from pie_inference.config import WorkerConfig
from pie_inference.errors import AdapterError
from pie_inference.protocol import DropAdapter, LoadAdapter, RunWave
from pie_inference.serving.worker import Worker
from testing.checkpoints import make_checkpoint
from testing.worker_batches import Driver, ints
from tests.helpers.adapters import PREFIX, make_adapter, merged
from tests.inference.adapters.test_peft import PROMPT, run

OPTIONS: dict[str, Any] = {"pages": 64, "host_pages": 8, "embeds": 1024, "dtype": "float32", "threads": 1}
Q = f"{PREFIX}.0.self_attn.q_proj"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def worker(checkpoint: Path) -> Iterator[Worker]:
    threads = torch.get_num_threads()
    yield Worker(WorkerConfig(checkpoint, "model", max_adapters=2, adapter_mb=1, **OPTIONS))
    torch.set_num_threads(threads)


def error_of(worker: Worker, folder: Path, number: int = 50) -> str:
    answer = worker.load_adapter(LoadAdapter(number, str(folder)))
    assert answer.error is not None
    assert answer.nbytes == 0
    assert worker._served.adapters.nbytes == 0
    return answer.error


def test_an_adapter_equals_merged_weights(worker: Worker, checkpoint: Path, tmp_path: Path) -> None:
    adapter = make_adapter(tmp_path / "adapter")
    whole = make_checkpoint(tmp_path / "merged")
    save_file(merged(load_file(checkpoint / "model.safetensors"), adapter), whole / "model.safetensors")
    answer = worker.load_adapter(LoadAdapter(1, str(adapter)))
    of_a_layer = 4 * (64 + 128) + 4 * (96 + 64)  # the first beside queries, keys and values
    assert answer.nbytes == worker._served.adapters.nbytes == 4 * 2 * of_a_layer
    [found] = run(Driver(worker.run, "model"), [1], [PROMPT])
    worker.drop_adapter(DropAdapter(1))
    [expected] = run(Driver(Worker(WorkerConfig(whole, "model", **OPTIONS)).run, "model"), [-1], [PROMPT])
    np.testing.assert_allclose(found, expected, atol=1e-4)


BROKEN: dict[str, tuple[dict[str, Any], str]] = {
    "no LoRA": ({"peft_type": "IA3"}, "peft_type is 'IA3'; only LORA is served"),
    "rank 0": ({"r": 0}, "r must be a rank of 1 to 1024, not 0"),
    "rank no number": ({"r": "8"}, "r must be a rank"),
    "alpha": ({"lora_alpha": None}, "lora_alpha must be a number"),
    "alpha that no float holds": ({"lora_alpha": 10**400}, "lora_alpha must be a number, not 1000"),
    "alpha pattern that no float holds": ({"alpha_pattern": {"q_proj": 10**400}}, "alpha_pattern must be a number"),
    "alpha pattern": ({"alpha_pattern": {"q_proj": "x"}}, "alpha_pattern must be a number"),
    "rank pattern": ({"rank_pattern": [1]}, "rank_pattern must be an object"),
    "other rank": ({"r": 8}, "has shape [4, 96], expected [8, 96]"),
    "targets": ({"target_modules": 5}, "target_modules must be a list of names"),
    "no targets": ({"target_modules": []}, "target_modules must be a list of names"),
    "unknown targets": ({"target_modules": ["query"]}, "target_modules matches no layer"),
    "more targets": ({"target_modules": ["q_proj", "down_proj", "v_proj"]}, "v_proj is missing"),
    "fewer targets": ({"target_modules": ["q_proj"]}, "which target_modules does not name"),
    "layers": ({"layers_to_transform": ["0"]}, "layers_to_transform must be numbers"),
    "layers pattern": ({"layers_pattern": ["(a+)+"]}, "layers_pattern must be names"),
    "no expression": ({"target_modules": "("}, "'(' is no regular expression"),
    "new feature": ({"use_future": True}, "use_future is set: this feature of PEFT is not served"),
    "all": ({"target_modules": "all-linear"}, "gate_proj is missing"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_wrong_configurations(name: str, worker: Worker, tmp_path: Path) -> None:
    changes, message = BROKEN[name]
    assert message in error_of(worker, make_adapter(tmp_path, **changes))


def test_newer_keys_without_effect_are_served(worker: Worker, tmp_path: Path) -> None:
    folder = make_adapter(tmp_path, use_future=None, lora_dropout=0.1, peft_version="99", future_list=[])
    assert worker.load_adapter(LoadAdapter(7, str(folder))).error is None
    worker.drop_adapter(DropAdapter(7))


def write_file(folder: Path, data: bytes) -> None:
    (folder / FILE).write_bytes(data)


def header(size: int, text: bytes) -> bytes:
    return struct.pack("<Q", size) + text


def put(folder: Path, name: str, make: Callable[[Path], object]) -> None:
    """Puts something else in the place of a file."""
    (folder / name).unlink()
    make(folder / name)


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def huge_shape(folder: Path) -> None:
    """A header that claims 2^60 numbers."""
    text = json.dumps({f"{Q}.lora_A.weight": {"dtype": "F32", "shape": [1 << 30, 1 << 30], "data_offsets": [0, 4]}})
    write_file(folder, header(len(text), text.encode()) + bytes(4))


NEGATIVE = json.dumps({"a": {"dtype": "F32", "shape": [4], "data_offsets": [-8, 8]}}).encode()

UNKNOWN = json.dumps({"a": {"dtype": "F4", "shape": [8], "data_offsets": [0, 4]}}).encode()

FILES: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing file": (lambda folder: (folder / FILE).unlink(), "there is no such file"),
    "pickle": (
        lambda folder: (folder / FILE).rename(folder / "adapter_model.bin"),
        "only adapter_model.bin, which can run code when it is read",
    ),
    "missing configuration": (lambda folder: (folder / CONFIG_FILE).unlink(), "an adapter is a folder as PEFT saves"),
    "configuration no JSON": (lambda folder: (folder / CONFIG_FILE).write_text("{"), "unreadable"),
    "configuration a list": (lambda folder: (folder / CONFIG_FILE).write_text("[]"), "not a JSON object"),
    "configuration nested": (lambda folder: (folder / CONFIG_FILE).write_text("[" * 200000), CONFIG_FILE),
    "large configuration": (
        lambda folder: (folder / CONFIG_FILE).write_bytes(b" " * 2000000),
        "2000000 bytes are more than the 1048576",
    ),
    "empty": (lambda folder: write_file(folder, b""), "unreadable"),
    "no safetensors": (lambda folder: write_file(folder, b"\x80\x04" + b"x" * 100), "unreadable"),
    "huge header": (lambda folder: write_file(folder, header(1 << 62, b"{}")), "unreadable"),
    "no tensors in the header": (lambda folder: write_file(folder, header(6, b'{"a":1')), "unreadable"),
    "a header of lists": (lambda folder: write_file(folder, header(2, b"[]")), "unreadable"),
    "a nested header": (lambda folder: write_file(folder, header(200000, b"[" * 200000)), "unreadable"),
    "negative places": (
        lambda folder: write_file(folder, header(len(NEGATIVE), NEGATIVE) + bytes(16)),
        "unreadable",
    ),
    "a format without numbers here": (
        lambda folder: write_file(folder, header(len(UNKNOWN), UNKNOWN) + bytes(4)),
        "numbers in the format 'F4'",
    ),
    "huge shape": (huge_shape, "unreadable"),
    "a configuration that is a pipe": (lambda folder: put(folder, CONFIG_FILE, os.mkfifo), "it is no regular file"),
    "weights that are a pipe": (lambda folder: put(folder, FILE, os.mkfifo), "it is no regular file"),
    "a configuration without end": (lambda folder: put(folder, CONFIG_FILE, endless), "it is no regular file"),
    "weights without end": (lambda folder: put(folder, FILE, endless), "it is no regular file"),
    "a configuration that is a folder": (lambda folder: put(folder, CONFIG_FILE, os.mkdir), "it is no regular file"),
    "a link to itself": (lambda folder: put(folder, FILE, lambda path: path.symlink_to(path)), "unreadable"),
    "cut off": (lambda folder: write_file(folder, (folder / FILE).read_bytes()[:-100]), "unreadable"),
}


def test_a_file_that_is_shortened_while_it_is_read_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, folder = make_adapter(tmp_path) / FILE, AdapterFolder(tmp_path)
    whole, fstat, size = path.read_bytes(), os.fstat, path.stat().st_size
    assert folder.read(FILE, size) == whole

    looks = iter((False, True))  # whether it is a file, and how long

    def cut(descriptor: int) -> os.stat_result:
        before = fstat(descriptor)
        if before.st_size == size and next(looks):
            os.truncate(path, size - 100)  # a mapped file would end this process
        return before

    monkeypatch.setattr(os, "fstat", cut)
    with pytest.raises(AdapterError, match="shortened while it was read"):
        folder.read(FILE, size)
    assert path.stat().st_size == size - 100


def test_a_file_for_which_there_is_no_room_is_not_read(tmp_path: Path) -> None:
    size = (make_adapter(tmp_path) / FILE).stat().st_size
    with pytest.raises(AdapterError, match=f"{size} bytes are more than the {size - 1} for which there is room"):
        AdapterFolder(tmp_path).read(FILE, size - 1)


def test_a_file_with_room_for_more_than_all_adapters_is_refused(worker: Worker, tmp_path: Path) -> None:
    os.truncate(make_adapter(tmp_path) / FILE, (8 << 18) + (16 << 20) + 1)  # a sparse file
    assert "18874369 bytes are more than the 18874368 for which there is room" in error_of(worker, tmp_path)


@pytest.mark.parametrize("name", FILES)
def test_broken_files(name: str, worker: Worker, tmp_path: Path) -> None:
    change, message = FILES[name]
    change(make_adapter(tmp_path))
    error = error_of(worker, tmp_path)
    assert message in error
    assert str(tmp_path) not in error


def test_files_lie_inside_of_the_folder_for_adapters(worker: Worker, tmp_path: Path) -> None:
    outside, inside = make_adapter(tmp_path / "outside"), tmp_path / "in"
    linked = make_adapter(inside / "linked")
    for name in (CONFIG_FILE, FILE):
        kept = (linked / name).rename(inside / name)
        (linked / name).symlink_to(outside / name)
        answer = worker.load_adapter(LoadAdapter(60, str(linked), str(inside)))
        assert answer.error == f"{name}: it is a link that leads out of --adapter-dir: copy the file there"
        (linked / name).unlink()
        (linked / name).symlink_to(kept)
    assert worker.load_adapter(LoadAdapter(61, str(linked), str(inside))).error is None, "links inside are followed"
    worker.drop_adapter(DropAdapter(61))


def test_whatever_a_folder_causes_is_an_answer(
    worker: Worker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: object) -> None:
        raise LookupError(f"nobody has foreseen {tmp_path}")

    monkeypatch.setattr(adapters, "read_adapter", fails)
    assert error_of(worker, tmp_path) == "it cannot be loaded: LookupError; the server's log says more"
    assert "LookupError: nobody has foreseen" in capfd.readouterr().err


TENSORS: dict[str, tuple[dict[str, torch.Tensor | None], str]] = {
    "A is missing": ({f"{Q}.lora_A.weight": None}, "the tensor lora_A of model.layers.0.self_attn.q_proj is missing"),
    "B is missing": ({f"{Q}.lora_B.weight": None}, "the tensor lora_B of model.layers.0.self_attn.q_proj is missing"),
    "another base model": (
        {f"{Q}.lora_A.weight": torch.zeros(4, 128)},
        "has shape [4, 128], expected [4, 64]: the adapter's base model 'tiny' is not of this shape",
    ),
    "more layers": ({f"{PREFIX}.2.self_attn.q_proj.lora_A.weight": torch.zeros(4, 64)}, "belongs to no linear layer"),
    "magnitudes": ({f"{Q}.lora_magnitude_vector": torch.zeros(64)}, "belongs to no linear layer"),
    "whole weights": ({f"{Q}.weight": torch.zeros(64, 64)}, "belongs to no linear layer"),
    "integers": ({f"{Q}.lora_A.weight": torch.zeros(4, 64, dtype=torch.int32)}, "is stored as int32, expected float32"),
    "not finite": ({f"{Q}.lora_B.weight": torch.full((64, 4), torch.nan)}, "has numbers that are not finite"),
    "twice": ({f"{Q}.lora_A.default.weight": torch.zeros(4, 64)}, "has two tensors lora_A"),
}


@pytest.mark.parametrize("name", TENSORS)
def test_wrong_tensors(name: str, worker: Worker, tmp_path: Path) -> None:
    tensors, message = TENSORS[name]
    assert message in error_of(worker, make_adapter(tmp_path, tensors=tensors))


def test_an_expression_that_takes_for_ever(worker: Worker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patterns, "SECONDS", 0.5)
    message = error_of(worker, make_adapter(tmp_path, target_modules=r"((\w+\.?)+)+!"))
    assert "take more than 0.5 s to match" in message


def test_count_and_memory_are_bounded(worker: Worker, tmp_path: Path) -> None:
    small = make_adapter(tmp_path / "small")
    large = make_adapter(tmp_path / "large", rank=600, modules=["mlp.up_proj", "mlp.down_proj"])
    assert "are more than the 262144 for which there is room: drop other adapters" in error_of(worker, large)
    for number in (11, 12):
        assert worker.load_adapter(LoadAdapter(number, str(small))).error is None
    assert "2 adapters are loaded, the most" in str(worker.load_adapter(LoadAdapter(13, str(small))).error)
    worker.drop_adapter(DropAdapter(11))
    assert worker.load_adapter(LoadAdapter(13, str(small))).error is None
    for number in (11, 12, 13):
        worker.drop_adapter(DropAdapter(number))
    assert worker._served.adapters.nbytes == 0


def test_a_dropped_adapter_fails_its_users_only(worker: Worker, tmp_path: Path) -> None:
    import msgspec

    from testing.worker_batches import Extend, Keys

    worker.load_adapter(LoadAdapter(21, str(make_adapter(tmp_path))))
    driver = Driver(worker.run, "model")
    expected = run(driver, [-1, 21], [PROMPT, PROMPT])
    embed, forward = driver.forward_batch([Extend(Keys(), PROMPT) for _ in range(3)])
    forward = msgspec.structs.replace(forward, adapters=ints([-1, 22, 21]))
    done = worker.run(RunWave(1, "model", (embed, forward)))
    assert [(failure.batch, failure.command) for failure in done.failures] == [(1, 1)]
    assert "the adapter was dropped" in done.failures[0].message
    assert worker._served.adapters.layers.running.groups is None
    worker.drop_adapter(DropAdapter(21))
    (again,) = run(driver, [-1], [PROMPT])
    np.testing.assert_allclose(again, expected[0], atol=1e-5)
    wrong = msgspec.structs.replace(forward, adapters=ints([-1]))
    assert "adapters has 1 elements" in worker.run(RunWave(2, "model", (wrong,))).failures[0].message
