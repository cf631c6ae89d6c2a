"""The compiled kernels: building, what happens where they cannot be built, and the threads that they run in."""

from __future__ import annotations

import logging
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from pie_inference.assembly.kernels import choose_ops
from pie_inference.cpu_kernels import build as building
from pie_inference.cpu_kernels.build import build
from pie_inference.cpu_kernels.library import ADDRESS, INTEGER, Library, find_library
from pie_inference.errors import ConfigError, KernelsUnavailable
from pie_inference.ops.cpu_ops import CpuOps
from pie_inference.ops.torch_ops import TorchOps
from pie_inference.options import compiling
from tests.helpers.guard import HANG_SECONDS
from tests.helpers.kernels import ISAS, needs_kernels

CPU = torch.device("cpu")
ARM_COMPILER = "aarch64-linux-gnu-g++"


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
    (folder / "isa.cpp").write_text('extern "C" const char* isa() { return "AVX2"; }')
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
def test_of_many_that_build_at_once_one_compiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[Path] = []
    run = compiling._compile_all

    def watched(*arguments: Any) -> Path:
        compiled.append(run(*arguments))
        return compiled[-1]

    monkeypatch.setattr(compiling, "_compile_all", watched)
    with ThreadPoolExecutor(4) as pool:
        paths = list(pool.map(build, [tmp_path] * 4))
    assert paths == compiled * 4
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
    names = {building._fingerprint(fake_compiler(tmp_path, f"echo {version}"), ()) for version in (1, 2)}
    names.add(building._fingerprint(fake_compiler(tmp_path, "echo 2"), ("-mavx2",)))
    monkeypatch.setattr(building, "SOURCES", tmp_path)
    names.add(building._fingerprint(fake_compiler(tmp_path, "echo 2"), ()))
    (tmp_path / "more.cpp").write_text("")
    names.add(building._fingerprint(fake_compiler(tmp_path, "echo 2"), ()))
    assert len(names) == 5


@needs_kernels
def test_without_a_compiler(tmp_path: Path) -> None:
    with pytest.raises(KernelsUnavailable, match=r"no C\+\+ compiler here; install one of no-such-compiler"):
        build(tmp_path, ("no-such-compiler",))


@needs_kernels
def test_with_a_failing_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(compiling, "SECONDS_BETWEEN_LINES", 0.001)
    compiler = fake_compiler(tmp_path / "bin", 'echo "x.cpp:1: error: no such header" >&2; echo more >&2; exit 1')
    with pytest.raises(KernelsUnavailable, match=r"compiler failed: x.cpp:1: error: no such header$"):
        build(tmp_path / "cache", (compiler,))
    assert list((tmp_path / "cache" / "kernels").iterdir()) == []
    assert "compiling kernels for this CPU: 0 s" in capsys.readouterr().err


@needs_kernels
def test_with_a_cache_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(KernelsUnavailable, match=r"file/kernels cannot be used: .*--cache-dir"):
        build(tmp_path / "file")


def test_on_another_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(building, "cpu_flags", lambda: frozenset({"sse2", "avx2"}))
    with pytest.raises(KernelsUnavailable, match=r"this CPU has no f16c, fma$"):
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
def test_own_kernels_are_insisted_on(tmp_path: Path, kernel_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_library("own", kernel_cache, CPU) is not None
    with pytest.raises(ConfigError, match="--kernels own: these kernels are for CPUs, and the model runs on meta"):
        find_library("own", kernel_cache, torch.device("meta"))
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(building, "cpu_flags", lambda: frozenset[str]())
    with pytest.raises(ConfigError, match="--kernels own: this CPU has no avx2, f16c, fma"):
        find_library("own", tmp_path, CPU)


@needs_kernels
@pytest.mark.parametrize("isa", ISAS[1:])
def test_one_isa_may_stand_for_another(isa: str, kernel_cache: Path) -> None:
    library = find_library("auto", kernel_cache, CPU, isa)
    assert library is not None
    assert "tiles" not in library.isa
    if platform.machine() == "x86_64":
        assert (isa == "avx2") == (library.isa == "AVX2")


@pytest.mark.skipif(shutil.which(ARM_COMPILER) is None, reason=f"{ARM_COMPILER} is not installed")
@pytest.mark.parametrize("source", sorted(building.SOURCES.glob("*.cpp")), ids=lambda path: path.name)
def test_sources_compile_for_arm(source: Path) -> None:
    """Compiled only: nothing here runs NEON."""
    command = [ARM_COMPILER, *building.FLAGS, "-march=armv8.2-a", "-Wall", "-Werror", "-fsyntax-only", str(source)]
    subprocess.run(command, check=True, timeout=HANG_SECONDS)


# ---- threads ---------------------------------------------------------------------------------------------------------


@needs_kernels
def test_callers_beside_each_other_all_get_their_results(library: Library) -> None:
    """One of them has the threads; the others run alone."""
    gated = library.kernel("gated_float", ADDRESS, INTEGER, ADDRESS, INTEGER, INTEGER, INTEGER, INTEGER)
    rows = torch.randn(512, 512, generator=torch.Generator().manual_seed(0))

    def run(threads: int) -> torch.Tensor:
        out = torch.full((512, 256), torch.nan)
        gated(rows.data_ptr(), 512, out.data_ptr(), 512, 256, 0, threads)
        return out

    expected = run(1)
    with ThreadPoolExecutor(4) as pool:
        for out in pool.map(run, [1, 2, 3, 4] * 100):
            assert torch.equal(out, expected)


@needs_kernels
def test_more_threads_than_cores_serve(kernel_cache: Path) -> None:
    """Of threads that have no core, nobody waits for one."""
    code = f"""
import ctypes, os
from pathlib import Path
import numpy
os.sched_setaffinity(0, {{min(os.sched_getaffinity(0))}})
read = ctypes.CDLL({str(build(kernel_cache))!r}).read_memory
read.argtypes = [ctypes.c_void_p, ctypes.c_int64] * 2
numbers, sums = numpy.ones(1 << 20, numpy.int64), numpy.zeros(16, numpy.int64)
for _ in range(200):
    read(numbers.ctypes.data, numbers.nbytes, sums.ctypes.data, 16)
    assert sums.sum() == 1 << 20
print(len(list(Path("/proc/self/task").iterdir())) >= 16)
"""
    output = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=HANG_SECONDS
    )
    assert output.stdout == "True\n"
