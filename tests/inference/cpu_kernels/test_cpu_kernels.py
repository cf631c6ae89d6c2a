"""The compiled kernels: building, what happens where they cannot be built, and the threads that they run in."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from pie_inference.cpu_kernels import build as building
from pie_inference.cpu_kernels.build import build
from pie_inference.cpu_kernels.library import Library, find_library, loaded_libraries
from pie_inference.errors import KernelsUnavailable
from pie_inference.ops.choose import choose_ops
from pie_inference.ops.cpu_ops import CpuOps
from pie_inference.ops.torch_ops import TorchOps

CPU = torch.device("cpu")
needs_kernels = pytest.mark.skipif(
    not building.cpu_flags() >= building.NEEDED_FLAGS, reason="the kernels need a CPU with AVX-512 and bfloat16"
)


def fake_compiler(folder: Path, script: str) -> str:
    folder.mkdir(exist_ok=True)
    path = folder / "compiler"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def few_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that compiling takes no time."""
    folder = tmp_path / "sources"
    folder.mkdir()
    for name in ("parallel.cpp", "parallel.h"):
        (folder / name).write_bytes((building.SOURCES / name).read_bytes())
    monkeypatch.setattr(building, "SOURCES", folder)


@needs_kernels
@pytest.mark.usefixtures("few_sources")
def test_builds_once(tmp_path: Path) -> None:
    path = build(tmp_path)
    compiled = path.stat()
    assert build(tmp_path) == path
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (compiled.st_ino, compiled.st_mtime_ns)
    assert list(path.parent.iterdir()) == [path]  # nothing unfinished is left


@needs_kernels
@pytest.mark.usefixtures("few_sources")
def test_many_may_build_at_once(tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        paths = list(pool.map(build, [tmp_path] * 4))
    assert len(set(paths)) == 1
    Library(paths[0])
    assert list(paths[0].parent.iterdir()) == [paths[0]]


@needs_kernels
@pytest.mark.usefixtures("few_sources")
@pytest.mark.parametrize(
    "damage", [lambda data: data[:-1], lambda data: data[:100] + b"x" + data[101:], lambda data: b""]
)
def test_a_damaged_library_is_never_loaded_but_built_again(
    damage: Callable[[bytes], bytes], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = build(tmp_path)
    good = path.read_bytes()
    path.write_bytes(damage(good))
    assert build(tmp_path).read_bytes() == good
    assert "damaged and made anew" in caplog.text


@needs_kernels
@pytest.mark.usefixtures("few_sources")
def test_a_library_that_others_can_write_is_built_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = build(tmp_path)
    path.chmod(0o666)
    assert build(tmp_path).stat().st_mode & 0o077 == 0
    assert "is not a plain file that only its owner" in caplog.text


@needs_kernels
def test_a_folder_that_others_can_write_is_refused(tmp_path: Path) -> None:
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels").chmod(0o777)
    with pytest.raises(KernelsUnavailable, match=r"others can write into the cache folder .*kernels.*: chmod go-w"):
        build(tmp_path)


def test_another_compiler_or_source_is_another_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = {building._fingerprint(fake_compiler(tmp_path, f"echo {version}")) for version in (1, 2)}
    monkeypatch.setattr(building, "SOURCES", tmp_path)
    names.add(building._fingerprint(fake_compiler(tmp_path, "echo 2")))
    (tmp_path / "more.cpp").write_text("")
    names.add(building._fingerprint(fake_compiler(tmp_path, "echo 2")))
    assert len(names) == 4


@needs_kernels
def test_without_a_compiler(tmp_path: Path) -> None:
    with pytest.raises(KernelsUnavailable, match=r"no C\+\+ compiler here; install one of no-such-compiler"):
        build(tmp_path, ("no-such-compiler",))


@needs_kernels
def test_with_a_failing_compiler(tmp_path: Path) -> None:
    compiler = fake_compiler(tmp_path / "bin", 'echo "x.cpp:1: error: no such header" >&2; echo more >&2; exit 1')
    with pytest.raises(KernelsUnavailable, match=r"compiler failed: x.cpp:1: error: no such header$"):
        build(tmp_path / "cache", (compiler,))
    assert list((tmp_path / "cache" / "kernels").iterdir()) == []


@needs_kernels
def test_with_a_cache_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(KernelsUnavailable, match=r"file/kernels cannot be used: .*--cache-dir"):
        build(tmp_path / "file")


def test_on_another_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(building, "cpu_flags", lambda: frozenset({"sse2", "avx512f"}))
    with pytest.raises(KernelsUnavailable, match="this CPU has no avx512_bf16, avx512bw, "):
        build(tmp_path)


def test_torch_serves_where_there_are_no_kernels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(building, "cpu_flags", lambda: frozenset[str]())
    with caplog.at_level(logging.WARNING):
        library = find_library("auto", tmp_path, CPU)
    assert isinstance(choose_ops("auto", CPU, torch.float32, library), TorchOps)
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
        "slower operations of torch serve instead of the CPU kernels"
    ]


def test_kernels_are_for_cpus_and_can_be_declined(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert find_library("torch", tmp_path, CPU) is None
    assert find_library("auto", tmp_path, torch.device("meta")) is None
    assert not caplog.records
    assert not list(tmp_path.iterdir())


@needs_kernels
def test_kernels_serve_where_they_can(kernel_cache: Path) -> None:
    library = find_library("auto", kernel_cache, CPU)
    assert isinstance(choose_ops("auto", CPU, torch.bfloat16, library), CpuOps)


@needs_kernels
def test_the_process_has_one_openmp_runtime(kernel_cache: Path) -> None:
    """Two would spin against each other. The kernels must not bring a second one beside torch's."""
    code = f"""
import threading, torch
from pathlib import Path
from pie_inference.cpu_kernels.library import *
library = find_library("auto", Path({str(kernel_cache)!r}), torch.device("cpu"))
torch.set_num_threads(2)
torch.ones(1 << 20).exp()
before = len(list(Path("/proc/self/task").iterdir()))
gated = library.kernel("gated_float", ADDRESS, INTEGER, ADDRESS, INTEGER, INTEGER, INTEGER, INTEGER)
rows, out = torch.ones(512, 512), torch.empty(512, 256)
gated(rows.data_ptr(), 512, out.data_ptr(), 512, 256, 0, 2)
assert len(list(Path("/proc/self/task").iterdir())) == before  # the kernel ran in torch's threads
print(sum(Path(path).name.startswith(OPENMP_RUNTIMES) for path in loaded_libraries()))
"""
    environment = {**os.environ, "OMP_NUM_THREADS": "2"}
    output = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert output.stdout == "1\n"


def test_loaded_libraries_are_paths() -> None:
    assert any(Path(path).name.startswith("libtorch_cpu") for path in loaded_libraries())
