"""scripts/install.py: where torch comes from. pip asks servers of the test's own; nothing is installed. And what is in
a wheel."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import socket
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from types import ModuleType
from typing import Any

import pytest

from tests.helpers.tree import EXAMPLES, ROOT

SCRIPT = ROOT / "scripts" / "install.py"


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script as a module, on Linux without a GPU and without settings of pip; it knows no pip to install with."""
    spec = importlib.util.spec_from_file_location("install_script", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)  # dataclasses look their module up
    spec.loader.exec_module(module)
    for name in [name for name in os.environ if name.startswith(("PIP_", "TORCH_INDEX"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(module, "has_nvidia_gpu", lambda: False)
    return module


@contextmanager
def index(folder: Path, *versions: str) -> Iterator[str]:
    """URL of a package index that has these versions of torch, and no files."""
    links = "".join(f'<a href="torch-{one.replace("+", "%2B")}-py3-none-any.whl">torch</a>' for one in versions)
    (folder / "torch").mkdir()
    (folder / "torch" / "index.html").write_text(f"<!DOCTYPE html><html><body>{links}</body></html>")
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(folder))) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


def test_the_cpu_build_where_its_index_answers(install: ModuleType, tmp_path: Path) -> None:
    with index(tmp_path, "2.0.0", f"{install.pinned_torch()}+cpu") as url:
        assert install.choose(None, os.environ, url).index == url


def test_an_index_without_the_pinned_torch_is_left(install: ModuleType, tmp_path: Path) -> None:
    with index(tmp_path, "2.0.0", f"1{install.pinned_torch()}") as url:
        assert install.choose(None, os.environ, url).index is None


@pytest.mark.parametrize("listening", [False, True])
def test_an_index_that_does_not_answer_is_left_soon(
    listening: bool, install: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(install, "ANSWER_SECONDS", 1)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        if listening:
            silent.listen()
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        before = time.monotonic()
        choice = install.choose(None, os.environ, url)
        assert time.monotonic() - before < 8
    assert choice.index is None
    assert f"{url} does not answer" in choice.why


def test_a_gpu_other_systems_and_settings_of_pip_leave_it_to_pip(
    install: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(install, "offers", lambda *_: pytest.fail("nobody needs to ask"))
    assert "index-url is set" in install.choose(None, {**os.environ, "PIP_INDEX_URL": "http://mirror"}).why
    assert install.choose(None, {**os.environ, "PIP_NO_INDEX": "1"}).index is None
    monkeypatch.setattr(install, "has_nvidia_gpu", lambda: True)
    assert "NVIDIA GPU" in install.choose(None, os.environ).why
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    assert install.choose(None, os.environ).index is None


def test_torch_index_decides(install: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install, "has_nvidia_gpu", lambda: True)
    assert install.choose("http://mine", {**os.environ, "PIP_INDEX_URL": "http://mirror"}).index == "http://mine"
    assert install.choose("", os.environ).index is None


def test_a_device_or_its_tool_tells_of_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def has_gpu() -> bool:
        code = f"import sys; sys.path.insert(0, {str(SCRIPT.parent)!r}); from pathlib import Path; import install"
        code += f"; print(install.has_nvidia_gpu(Path({str(tmp_path)!r})))"
        return subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout == b"True\n"

    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert not has_gpu()
    tool = tmp_path / "bin" / "nvidia-smi"
    tool.parent.mkdir()
    tool.touch(0o755)
    assert has_gpu()
    tool.unlink()
    (tmp_path / "nvidia0").touch()
    assert has_gpu()


@pytest.fixture
def installed(install: ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What pip was asked to install, with the constraints that held."""
    calls: list[dict[str, Any]] = []

    def pip_install(*arguments: str) -> bool:
        constraints = Path(arguments[arguments.index("--constraint") + 1]).read_text()
        calls.append({"arguments": arguments, "constraints": constraints.splitlines()})
        return True

    monkeypatch.setattr(install, "pip_install", pip_install)
    return calls


def test_torch_comes_first_from_its_own_index(
    install: ModuleType, installed: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_INDEX", "http://mine")
    monkeypatch.setattr(install, "installed_torch", lambda: None)
    assert install.main(["dev"]) == 0
    torch, project = installed
    assert torch["arguments"][-3:] == ("--index-url", "http://mine", "torch")
    assert f"torch=={install.pinned_torch()}" in torch["constraints"]
    assert project["arguments"][-2:] == ("--editable", f"{SCRIPT.parent.parent}[dev]")


def test_an_installed_torch_stays(
    install: ModuleType,
    installed: list[dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("TORCH_INDEX", "http://mine")
    monkeypatch.setattr(install, "installed_torch", lambda: "2.9.1+cu128")
    assert install.main([]) == 0
    (project,) = installed
    assert project["arguments"][-2:] == ("--editable", str(SCRIPT.parent.parent))
    pins = [line for line in project["constraints"] if line.startswith(("torch", "triton"))]
    assert pins == ["torch==2.9.1+cu128"]
    assert "2.9.1+cu128 is installed and stays" in capsys.readouterr().out


def test_an_installed_torch_of_the_pinned_version_keeps_all_pins(install: ModuleType) -> None:
    assert install.constraints(f"{install.pinned_torch()}+cpu") == install.constraints(None)


def test_a_failure_of_pip_is_ours(install: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_INDEX", "http://mine")
    monkeypatch.setattr(install, "installed_torch", lambda: None)
    monkeypatch.setattr(install, "pip_install", lambda *_: False)
    assert install.main([]) == 1


def test_what_servers_import_has_its_bytecode_at_once(
    install: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert all(importlib.util.find_spec(name) for name in (*install.OF_SERVERS, *install.OF_TESTS))
    (tmp_path / "imported.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    install.make_bytecode(["imported"])
    assert list(tmp_path.glob("__pycache__/imported.*"))


@pytest.mark.parametrize(("interpreter", "told"), [(sys.executable, ""), ("/moved/.venv/bin/python", "`make clean`")])
def test_an_environment_that_was_moved_is_told(interpreter: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "pie").write_text(f"#!{interpreter}\n")
    make = ["make", "-n", "-C", str(ROOT), f"VENV={tmp_path}"]
    for target in ("serve", "clean"):
        done = subprocess.run([*make, target], capture_output=True, text=True)
        assert (done.returncode == 0) == (target == "clean" or not told)
        assert target == "clean" or told in done.stderr


def test_a_wheel_has_the_examples_and_the_demo_models(tmp_path: Path) -> None:
    pytest.importorskip("setuptools", minversion="77")
    tree = tmp_path / "tree"
    packages = ("pie_control", "pie_inference", "inferlet_sdk")
    for package in (*packages, "examples"):
        shutil.copytree(ROOT / package, tree / package, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, tree)
    build = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
    subprocess.run([sys.executable, "-c", build, str(tmp_path)], cwd=tree, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    held = set(zipfile.ZipFile(wheel).namelist())
    made = {"__pycache__", "target", "Cargo.lock"}
    files = [path for path in EXAMPLES.rglob("*") if path.is_file() and not made & {*path.parts}]
    assert not any(made & {*name.split("/")} for name in held)
    assert {f"pie_control/examples/{path.relative_to(EXAMPLES)}" for path in files} <= held
    assert {"pie_inference/demo_model/model.safetensors", "pie_inference/demo_reasoner/model.safetensors"} <= held
    assert {name.partition("/")[0] for name in held if "dist-info" not in name} == set(packages)
