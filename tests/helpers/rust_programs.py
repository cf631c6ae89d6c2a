"""Programs in Rust whose components are in the repository: where they are, and how they are built anew.

`built.json` beside a component says of which sources and by which compiler it was made. `python -m
tests.helpers.rust_programs` builds those whose sources have changed (`scripts/update_rust` does, too).
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import tempfile
import tomllib
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from unittest.mock import patch

from pie_control.authoring.build.cargo import built_module, lack_of_compiler
from pie_control.host_api.wit_files import current
from pie_control.sandbox.encoding.component import encode
from tests.helpers.tree import EXAMPLES, ROOT

CRATE = ROOT / "inferlet_sdk" / "rust"
MEASURED = ROOT / "benchmarks" / "support" / "inferlets" / "rust"
FOLDERS = [*sorted(EXAMPLES.glob("*/rust")), ROOT / "tests" / "rust", *sorted(MEASURED.iterdir())]
QUICK = {
    f"CARGO_PROFILE_RELEASE_{name}": value
    for name, value in (("LTO", "off"), ("OPT_LEVEL", "0"), ("CODEGEN_UNITS", "16"))
}
"""Settings with which cargo is soon done, and compiles the crate for all programs alike."""


def component(folder: Path) -> Path:
    """The component of a program."""
    about = tomllib.loads((folder / "Cargo.toml").read_text())
    source: str = about["lib"]["path"]
    return (folder / source).with_suffix(".wasm")


def digest(*paths: Path) -> str:
    """The hash of files, with their names."""
    found = sha256()
    for path in sorted(paths):
        found.update(f"{path.relative_to(ROOT)}\0".encode())
        found.update(path.read_bytes())
    return found.hexdigest()


def sources(folder: Path) -> str:
    """The hash of all that a component is made of."""
    crate = [CRATE / "Cargo.toml", *(CRATE / "src").rglob("*.rs")]
    return digest(folder / "Cargo.toml", *folder.glob("*.rs"), *crate)


def recorded(folder: Path) -> Mapping[str, str]:
    """What its `built.json` says: `compiler`, and the hashes `sources` and `component`."""
    found: Mapping[str, str] = json.loads((folder / "built.json").read_text())
    return found


@functools.cache
def compiler() -> Path | None:
    """The folder of a cargo and a rustc that know the target; None: there are none."""
    for place in [*map(Path, os.environ.get("PATH", "").split(os.pathsep)), Path("/usr/bin")]:
        if (place / "cargo").exists() and (place / "rustc").exists():
            with patch.dict(os.environ, {"RUSTC": str(place / "rustc")}):
                if not lack_of_compiler():
                    return place
    return None


def version() -> str:
    """What the compiler says it is."""
    place = compiler()
    assert place is not None
    return subprocess.run([place / "rustc", "--version"], capture_output=True, text=True, check=True).stdout.strip()


def environment(target: Path, settings: Mapping[str, str] | None = None) -> dict[str, str]:
    """With what cargo builds in the folder `target`. It is the same for all, so the crate is compiled there once."""
    place = compiler()
    assert place is not None
    return {
        **(settings or {}),
        "CARGO": str(place / "cargo"),
        "RUSTC": str(place / "rustc"),
        "CARGO_NET_OFFLINE": "true",
        "CARGO_TARGET_DIR": str(target),
        "RUSTFLAGS": f"--remap-path-prefix={ROOT}/=",
    }


def build(folder: Path, target: Path, settings: Mapping[str, str] | None = None) -> bytes:
    """The component of a program, built in the folder `target`. Raises BadProgram."""
    with patch.dict(os.environ, environment(target, settings)):
        module = built_module(folder)
    (folder / "Cargo.lock").unlink(missing_ok=True)
    return encode(module.read_bytes(), current())


def update() -> None:
    """Builds the components whose sources have changed."""
    with tempfile.TemporaryDirectory() as target:
        for folder in FOLDERS:
            record = folder / "built.json"
            if record.exists() and recorded(folder)["sources"] == sources(folder):
                continue
            data = build(folder, Path(target))
            component(folder).write_bytes(data)
            about = {"compiler": version(), "sources": sources(folder), "component": digest(component(folder))}
            record.write_text(json.dumps(about, indent=2) + "\n")
            print(f"{component(folder).relative_to(ROOT)}: {len(data)} bytes")


if __name__ == "__main__":
    update()
