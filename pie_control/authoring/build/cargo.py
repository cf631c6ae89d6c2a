"""Builds programs in Rust by `cargo`."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

from ...client.programs.packages import MANIFEST
from ...errors import BadProgram, BadRequest

TARGET = "wasm32-unknown-unknown"
INSTALL = (
    f"With rustup: `rustup target add {TARGET}` (https://rustup.rs). "
    "On Debian and Ubuntu: `apt install rustc cargo libstd-rust-dev-wasm32 lld-14`"
)

LOCK = "Cargo.lock"
LOCK_4 = 1, 78
"""The first cargo that reads lock files of version 4."""


def built_module(folder: Path) -> Path:
    """Builds the crate in a folder; returns the core module. What cargo says goes to stderr. Its settings hold: `CARGO`
    names the command, `RUSTC` the compiler. Raises BadRequest if the folder has no crate or there is no compiler, and
    BadProgram if the crate cannot be built."""
    if not (folder / MANIFEST).is_file():
        raise BadRequest(
            f"{folder} has no {MANIFEST}: `pie build` takes the folder of a program in Rust, or a .wasm file; a "
            "program in Python needs no build"
        )
    command = [_tool("cargo"), "build", "--release", "--target", TARGET]
    try:
        done = subprocess.run(
            [*command, "--message-format", "json-render-diagnostics"],
            cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=False,
        )  # fmt: skip
    except OSError as error:
        raise BadRequest(f"cannot run {command[0]} ({error.strerror}): a program in Rust needs it. {INSTALL}") from None
    if done.returncode != 0 and (lack := lack_of_compiler()):
        raise BadRequest(f"{lack}. {INSTALL}")
    if done.returncode != 0 and (version := _too_old_for(folder / LOCK)):
        raise BadProgram(
            f"{folder / LOCK} is of a newer cargo than {version}: delete it, and cargo makes one that it can read, or "
            f"build with cargo {'.'.join(map(str, LOCK_4))} or newer (CARGO names the command)"
        )
    if done.returncode != 0:
        raise BadProgram(f"{folder} cannot be built: {command[0]} says why on stderr")
    modules = _modules(done.stdout, folder / MANIFEST)
    if len(modules) != 1:
        many = f"several modules ({', '.join(path.name for path in modules)})" if modules else "no module"
        raise BadProgram(
            f'{folder} gives {many}: one crate with `crate-type = ["cdylib"]` in the [lib] part of {MANIFEST} gives one'
        )
    return modules[0]


def _modules(messages: bytes, manifest: Path) -> list[Path]:
    """The WebAssembly files that cargo has made, by its messages: the library of the crate of a manifest, or else all
    of this crate, or, where that is a workspace, of all. Tools of a crate, and crates on which it depends, may make
    some, too."""
    artifacts = [json.loads(line) for line in messages.splitlines() if line.startswith(b"{")]
    own = [each for each in artifacts if each.get("manifest_path") == str(manifest.resolve())]
    libraries = [each for each in own if "cdylib" in each["target"]["crate_types"]]
    for some in (libraries, own, artifacts):
        names = (name for each in some for name in each.get("filenames", ()))
        if found := [Path(name) for name in names if name.endswith(".wasm")]:
            return found
    return []


def _too_old_for(lock: Path) -> str:
    """The version of the cargo, if it cannot read a lock file of version 4; else nothing."""
    if not lock.is_file() or "\nversion = 4\n" not in lock.read_text(errors="replace"):
        return ""
    done = subprocess.run([_tool("cargo"), "--version"], capture_output=True, text=True, check=False)
    found = re.match(r"cargo ((\d+)\.(\d+)\S*)", done.stdout)
    return found[1] if found and (int(found[2]), int(found[3])) < LOCK_4 else ""


def lack_of_compiler() -> str:
    """What the compiler lacks to build for the target; "": nothing."""
    command = [_tool("rustc"), "--print", "target-libdir", "--target", TARGET]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    except OSError as error:
        return f"cannot run the Rust compiler {command[0]} ({error.strerror})"
    if done.returncode != 0:
        said = done.stderr.strip().partition("\n")[0] or f"exit status {done.returncode}"
        return f"the Rust compiler {command[0]} does not work ({said})"
    found = any(Path(done.stdout.strip()).glob("libstd-*"))
    return "" if found else f"the Rust compiler has no standard library for {TARGET}"


def _tool(name: str) -> str:
    """The command for cargo or rustc; an empty variable is none."""
    return os.environ.get(name.upper()) or name
