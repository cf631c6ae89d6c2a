"""Models by their id on the hub: a folder wins, and what goes wrong says what to do."""

from __future__ import annotations

import io
import shutil
import socket
import sys
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import huggingface_hub
import pytest
from huggingface_hub.errors import GatedRepoError, LocalEntryNotFoundError, RepositoryNotFoundError
from huggingface_hub.utils import _paths

from pie_control.config import build_config
from pie_control.errors import ConfigError
from pie_inference.config import WorkerConfig
from pie_inference.errors import CheckpointError
from pie_inference.inspection.checkup import check_up
from pie_inference.loading import hub
from pie_inference.options import compiling
from testing.checkpoints import make_checkpoint
from tests.helpers.guard import HANG_SECONDS

ANSWER: Any = httpx.Response(404, request=httpx.Request("GET", "http://hub"))
"""Of any type: which HTTP library its errors are told of differs between versions of the hub's."""


def answer_with(
    monkeypatch: pytest.MonkeyPatch, result: Any, files: tuple[str, ...] = ()
) -> list[tuple[str, dict[str, Any]]]:
    """Lets the hub return a folder or fail, and name `files`; records what it was asked for."""
    asked: list[tuple[str, dict[str, Any]]] = []

    def snapshot_download(name: str, **options: Any) -> str:
        asked.append((name, options))
        if isinstance(result, Exception):
            raise result
        return str(result)

    monkeypatch.setattr(hub, "_trouble", lambda: "")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    monkeypatch.setattr(huggingface_hub, "list_repo_files", lambda name: list(files))
    return asked


def test_an_id_is_fetched_without_second_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = answer_with(monkeypatch, tmp_path)
    assert hub.find_folder(Path("meta-llama/Llama-3.2-1B")) == tmp_path
    [(name, options)] = asked
    wanted = ["config.json", "model-1.safetensors", "1_Pooling/config.json", "additional_chat_templates/tool_use.jinja"]
    files = [*wanted, "original/a.safetensors", "onnx/tokenizer.json", "consolidated.safetensors", "model.bin"]
    assert options.pop("local_files_only") is False
    assert (name, list(_paths.filter_repo_objects(files, **options))) == ("meta-llama/Llama-3.2-1B", wanted)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (("README.md", "m-Q4_K_M.gguf", "m-Q8_0.gguf"), "^org/name/m-Q4_K_M.gguf: GGUF is not .*int4-32, which is of"),
        (("config.json", "pytorch_model.bin"), "^org/name: there is no model.safetensors, only pytorch_model.bin"),
    ],
)
def test_repositories_in_other_formats_say_what_to_take(
    files: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer_with(monkeypatch, tmp_path, files)
    with pytest.raises(CheckpointError, match=message):
        hub.find_folder(Path("org/name"))


def test_a_folder_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = answer_with(monkeypatch, tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "org" / "name").mkdir(parents=True)
    assert hub.find_folder(Path("org/name")) == Path("org/name")
    assert asked == []


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            GatedRepoError("x", response=ANSWER),
            "org/name: its owner grants access on request; ask on the model's page, then",
        ),
        (RepositoryNotFoundError("x", response=ANSWER), "no such folder here and no such model on the hub"),
        (LocalEntryNotFoundError("x"), "no such folder here, and the hub cannot be reached .x.; copy"),
        (OSError(28, "No space left on device"), "the hub failed: .*No space left"),
        (httpx.ConnectTimeout("timed out"), "the hub failed: timed out"),
    ],
    ids=["gated", "unknown", "offline", "full", "slow"],
)
def test_what_goes_wrong_says_what_to_do(error: Exception, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    answer_with(monkeypatch, error)
    with pytest.raises(CheckpointError, match=message):
        hub.find_folder(Path("org/name"))


@pytest.mark.parametrize("kept", [False, True])
def test_a_hub_that_does_not_answer_is_left_soon(kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trouble = hub._trouble
    asked = answer_with(monkeypatch, tmp_path if kept else LocalEntryNotFoundError("x"))
    monkeypatch.setattr(hub, "_trouble", trouble)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_ETAG_TIMEOUT", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        if kept:
            assert hub.find_folder(Path("org/name")) == tmp_path
        else:
            with pytest.raises(CheckpointError, match=r"the hub cannot be reached \(.*timed out.*|no answer.*\); copy"):
                hub.find_folder(Path("org/name"))
    assert [options["local_files_only"] for _, options in asked] == [True]


def test_a_download_tells_how_much_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = threading.Event()

    class Stderr(io.StringIO):
        def write(self, text: str) -> int:
            if "\r" in text:
                told.set()
            return super().write(text)

    def snapshot_download(name: str, **_: Any) -> str:
        blobs = tmp_path / "models--org--name" / "blobs"
        blobs.mkdir(parents=True)
        (blobs / "x.incomplete").write_bytes(bytes(5000))
        told.clear()
        assert told.wait(HANG_SECONDS), "a worker that says nothing for minutes is given up"
        return str(tmp_path)

    answer_with(monkeypatch, tmp_path)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(compiling, "SECONDS_BETWEEN_LINES", 0.01)
    monkeypatch.setattr(sys, "stderr", said := Stderr())
    assert hub.find_folder(Path("org/name")) == tmp_path
    assert "fetching org/name: 5 kB, 0 s\r" in said.getvalue()


def test_to_describe_a_model_fetches_no_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, fetched = make_checkpoint(tmp_path / "whole", shards=2), tmp_path / "fetched"
    shards = {
        path.name: huggingface_hub.parse_local_safetensors_file_metadata(path) for path in whole.glob("*.safetensors")
    }
    shutil.copytree(whole, fetched, ignore=shutil.ignore_patterns("*.safetensors"))
    asked = answer_with(monkeypatch, fetched, tuple(shards))
    found = SimpleNamespace(files_metadata=shards)
    monkeypatch.setattr(huggingface_hub.HfApi, "get_safetensors_metadata", lambda *_: found)
    config = WorkerConfig(whole, "name", device="cpu", kernels="torch", pages=32)
    there, here = (check_up(replace(config, model=model)) for model in (Path("org/name"), whole))
    assert (there.model, there.problem, there.shape) == ("org/name", None, here.shape)
    [(_, options)] = asked
    assert not options.pop("local_files_only")
    assert list(_paths.filter_repo_objects(shards, **options)) == []
    (fetched / "config.json").write_text('{"architectures": ["GizmoForCausalLM"]}')
    problem = check_up(replace(config, model=Path("org/name"))).problem
    assert str(problem).startswith("org/name/config.json: architecture GizmoForCausalLM")


def test_paths_are_no_ids(tmp_path: Path) -> None:
    for name in ("/no/where", "./org/name", "../org/name", "models", "a/b/c"):
        with pytest.raises(CheckpointError, match="there is no such folder"):
            hub.find_folder(Path("/nowhere") / name if name == "./org/name" else Path(name))
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="not a folder"):
        hub.find_folder(tmp_path / "file")


def test_the_server_leaves_ids_to_its_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = build_config({"model": "org/name"}).resolved()
    assert [(model.path, model.name) for model in config.models] == [("org/name", "name")]
    for model in ("org/name/more", "models", "./org/name"):
        with pytest.raises(ConfigError, match="no model at"):
            build_config({"model": model}).resolved()
