"""`pie build FOLDER` and `pie new --lang rust`: with a `cargo` of ours, and with a real one where there is one."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from pathlib import Path

import pytest
import wasmtime

from pie_control.authoring.build import build, cargo
from pie_control.authoring.check import check
from pie_control.authoring.native.program import source_of
from pie_control.authoring.new import make
from pie_control.cli.main import main
from pie_control.client.programs.packages import read_program
from pie_control.errors import BadProgram, BadRequest
from tests.helpers import rust_programs
from tests.helpers.live_server import live_server

MODULE = """(module (memory (export "memory") 1) (data (i32.const 0) "\\01\\00\\00\\00\\10\\00\\00\\00\\06\\00\\00\\00")
  (data (i32.const 16) "as told") (func (export "run") (result i32) (i32.const 0)))"""
"""A program that fails with the words "as tol"."""
FOUND = {"reason": "compiler-artifact", "filenames": ["target/libstory.rlib", "target/story.wasm"]}


def script(path: Path, text: str) -> str:
    path.write_text(f"#!{sys.executable}\nimport json, os, sys\n{text}")
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A crate without sources."""
    (tmp_path / "story").mkdir()
    (tmp_path / "story" / "Cargo.toml").touch()
    return tmp_path / "story"


def set_cargo(monkeypatch: pytest.MonkeyPatch, folder: Path, *artifacts: object, code: int = 0) -> None:
    """A `cargo` of Debian 12's version that writes a module, tells of artifacts, and ends with an exit code."""
    module = folder / "target" / "story.wasm"
    module.parent.mkdir(exist_ok=True)
    module.write_bytes(wasmtime.wat2wasm(MODULE))
    said = "".join(json.dumps(each).replace("target/", f"{module.parent}/") + "\n" for each in artifacts)
    notes = f"print(sys.argv[1:], os.getcwd(), file=open({str(folder / 'called')!r}, 'w'))"
    version = "if sys.argv[1:] == ['--version']: sys.exit(print('cargo 1.65.0'))"
    text = f"{version}\n{notes}\nprint({said!r})\nsys.exit({code})"
    monkeypatch.setenv("CARGO", script(folder.parent / "cargo", text))


def test_a_folder_is_built_by_cargo(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_cargo(monkeypatch, folder, FOUND, {"reason": "build-finished"})
    made = build(folder)
    assert made == folder / "target" / "story.component.wasm"
    assert made.read_bytes().startswith(b"\0asm\x0d")
    called = (folder / "called").read_text()
    assert "'build', '--release', '--target', 'wasm32-unknown-unknown'" in called
    assert called.endswith(f"{folder}\n")


def test_the_program_is_the_library_of_the_crate(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of_crate = {"manifest_path": str(folder.resolve() / "Cargo.toml")}
    own = {**FOUND, **of_crate, "target": {"crate_types": ["cdylib", "rlib"]}}
    tool = {**of_crate, "target": {"crate_types": ["bin"]}, "filenames": ["target/tool.wasm"]}
    other = {"manifest_path": "/elsewhere/Cargo.toml", "filenames": ["target/other.wasm"]}
    set_cargo(monkeypatch, folder, other, own, tool)
    assert build(folder) == folder / "target" / "story.component.wasm"


def test_commands_build_a_crate_first(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], guest_cache: Path
) -> None:
    set_cargo(monkeypatch, folder, FOUND)
    with live_server(guest_cache, warm_pool=0) as url:
        assert main(["run", "--server", url, str(folder)]) == 1
        assert "as tol" in capsys.readouterr().err
        assert main(["upload", "--server", url, str(folder)]) == 0
    assert capsys.readouterr().out.startswith("story: ")


def test_run_builds_a_crate_before_it_starts_a_server(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    set_cargo(monkeypatch, folder)
    monkeypatch.setattr("pie_control.cli.server_options.is_listening", lambda: False)
    assert main(["run", str(folder)]) == 2
    assert capsys.readouterr().err.startswith(f"pie: {folder} gives no module")


@pytest.mark.parametrize(
    ("artifacts", "message"),
    [
        ([], r'gives no module: one crate with `crate-type = \["cdylib"\]`'),
        ([FOUND, FOUND], r"gives several modules \(story.wasm, story.wasm\)"),
    ],
)
def test_a_crate_that_is_no_program(
    artifacts: list[object], message: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_cargo(monkeypatch, folder, *artifacts)
    with pytest.raises(BadProgram, match=message):
        build(folder)


def test_what_is_missing_is_told_with_how_to_install_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ways = r".*`rustup target add wasm32-unknown-unknown`.*`apt install rustc cargo libstd-rust-dev-wasm32 lld-14`"
    monkeypatch.setenv("CARGO", str(folder / "none"))
    with pytest.raises(BadRequest, match=r"cannot run .*/none \(No such file or directory\)" + ways):
        build(folder)
    with monkeypatch.context() as empty:
        empty.setenv("CARGO", "")
        empty.setenv("PATH", str(folder))
        with pytest.raises(BadRequest, match=r"cannot run cargo \(No such file or directory\)" + ways):
            build(folder)
    libraries = folder / "lib"
    set_cargo(monkeypatch, folder, code=101)
    monkeypatch.setenv("RUSTC", script(folder / "rustc", f"print({str(libraries)!r})"))
    with pytest.raises(BadRequest, match=r"no standard library for wasm32-unknown-unknown" + ways):
        build(folder)
    monkeypatch.setenv("RUSTC", script(folder / "rustc", "sys.exit('error: no toolchain\\nof many')"))
    with pytest.raises(BadRequest, match=r"compiler .*rustc does not work \(error: no toolchain\)" + ways):
        build(folder)
    monkeypatch.setenv("RUSTC", str(folder / "none"))
    with pytest.raises(BadRequest, match=r"cannot run the Rust compiler .*none \(No such file or directory\)" + ways):
        build(folder)
    monkeypatch.setenv("RUSTC", script(folder / "rustc", f"print({str(libraries)!r})"))
    libraries.mkdir()
    (libraries / "libstd-1.rlib").touch()
    (folder / "Cargo.lock").write_text("# made by cargo\nversion = 3\n")
    with pytest.raises(BadProgram, match=r"story cannot be built: .*cargo says why on stderr"):
        build(folder)
    (folder / "Cargo.lock").write_text("# made by cargo\nversion = 4\n")
    with pytest.raises(BadProgram, match=r"Cargo.lock is of a newer cargo than 1\.65\.0: delete it, .* 1\.78 or newer"):
        build(folder)


def test_folders_that_cannot_be_built(folder: Path) -> None:
    for read in (read_program, source_of, check):
        with pytest.raises(BadRequest, match=r"is a program in Rust, .*: `pie build .*story` makes a component of it"):
            read(folder)
    (folder / "Cargo.toml").rename(folder / "main.py")
    with pytest.raises(BadRequest, match=r"story has no Cargo.toml: .* a program in Python needs no build"):
        build(folder)


def test_what_new_makes_depends_on_the_crate_of_this_installation(tmp_path: Path) -> None:
    folder = make("tale", tmp_path, "rust")
    assert sorted(path.name for path in folder.iterdir()) == [".gitignore", "Cargo.toml", "README.md", "src"]
    found = re.search(r'inferlet = \{ path = "(.*)" \}', (folder / "Cargo.toml").read_text())
    assert found is not None
    assert (Path(found[1]) / "Cargo.toml").is_file()
    with pytest.raises(BadRequest, match="a crate cannot be called 'loop'"):
        make("loop", tmp_path, "rust")


@pytest.mark.skipif(rust_programs.compiler() is None, reason="no Rust compiler that knows wasm32-unknown-unknown")
def test_what_new_makes_is_built(tmp_path: Path, cargo_target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in rust_programs.environment(cargo_target, rust_programs.QUICK).items():
        monkeypatch.setenv(name, value)
    name = f"tale{os.getpid()}"
    try:
        made = build(make(name, tmp_path, "rust"))
        assert made == cargo_target / cargo.TARGET / "release" / f"{name}.component.wasm"
        assert os.path.getsize(made) > 1000
    finally:
        for left in sorted(cargo_target.rglob(f"*{name}*"), reverse=True):
            shutil.rmtree(left) if left.is_dir() else left.unlink()
