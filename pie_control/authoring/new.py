"""The files of a new inferlet."""

from __future__ import annotations

import json
import keyword
import shutil
import sys
from pathlib import Path

from ..errors import BadRequest
from ..programs.python_guest import sdk_folder
from ..programs.shelf import LOOKS_LIKE_A_HASH

PROGRAM = '''"""Tells facts about a topic."""

from inferlet_sdk import Args, Context, inferlet


@inferlet
async def main(args: Args, topic: str = "bees", max_tokens: int = 60) -> dict[str, str]:
    """Writes three facts about a topic."""
    ctx = Context(args.model)
    ctx.fill_chat("user", f"Write three facts about {topic}.")
    text = await args.stream(ctx.generate(max_tokens=max_tokens))
    return {"topic": topic, "text": text}
'''

TEST = """from inferlet_sdk.testing import run


def test_it_streams_what_it_returns() -> None:
    outcome = run("main.py", topic="cats", max_tokens=5)
    assert outcome.result["topic"] == "cats"
    assert outcome.text == outcome.result["text"]
    assert outcome.tokens is None or 0 < len(outcome.tokens) <= 5  # with --sandbox they are not seen
"""

README = """# {name}
Tells facts about a topic. `pie run {name}/ -- --topic cats` runs it, `pie run --native {name}/` under a debugger.
`pie check {name}/` looks for mistakes before a launch, `pie test {name}/` runs `test_{name}.py`.
`pie launch {name}/` runs it on a server.
The whole API: docs/inferlets.md and docs/sdk.md of Pie.
"""


CRATE = """[package]
name = "{name}"
version = "0.1.0"
edition = "2021"

[lib]
crate-type = ["cdylib"]

[dependencies]
inferlet = {{ path = {sdk} }}

[profile.release]
opt-level = "s"
lto = true
strip = true
panic = "abort"
"""

RUST_PROGRAM = """//! Tells facts about a topic.

use inferlet::{Args, Context, Json, Result};

inferlet::main!(main);

async fn main(args: Args) -> Result<Json> {
    let topic = args.or("topic", "bees".to_string())?;
    let max_tokens = args.or("max_tokens", 60)?;
    args.finish()?; // refuses others
    let mut ctx = Context::new(args.model())?;
    ctx.user(&format!("Write three facts about {topic}."))?;
    let text = args.stream(&mut ctx.generate(max_tokens)).await?;
    Ok(Json::object([("topic", Json::from(topic)), ("text", Json::from(text))]))
}
"""

RUST_README = """# {name}
Tells facts about a topic. `pie run {name}/ -- --topic cats` builds it and runs it, `pie launch {name}/` on a server.
`pie build {name}/` makes the component alone.
The crate `inferlet`, on which it depends, comes with Pie: its path in Cargo.toml is that of this installation.
The whole API: docs/inferlets.md of Pie, and `cargo doc --open`.
"""
RUST_WORDS = """abstract become box const crate do dyn enum extern fn final impl inferlet let loop macro mod move mut
override priv pub ref static struct super trait typeof union unsafe unsized use virtual where"""
"""No crate can have these names, and words of Python have none either."""


def make(name: str, parent: Path, language: str = "python") -> Path:
    """Writes the files of an inferlet in a language, "python" or "rust", into a new folder, and returns that. Raises
    BadRequest."""
    check_name(name)
    if language == "rust" and name in RUST_WORDS.split():
        raise BadRequest(f"a crate cannot be called {name!r}: take another name")
    folder = parent / name
    try:
        folder.mkdir()
    except FileExistsError:
        raise BadRequest(f"{folder} is there already: take another name, or remove it") from None
    except OSError as error:
        raise BadRequest(f"cannot make {folder}: {error.strerror}") from None
    try:
        for file, text in (_crate(name) if language == "rust" else _python(name)).items():
            (folder / file).parent.mkdir(exist_ok=True)
            (folder / file).write_text(text, "utf-8")
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise BadRequest(f"cannot make {folder}: {error.strerror}") from None
    return folder


def _python(name: str) -> dict[str, str]:
    return {"main.py": PROGRAM, f"test_{name}.py": TEST, "README.md": README.format(name=name)}


def _crate(name: str) -> dict[str, str]:
    manifest = CRATE.format(name=name, sdk=json.dumps(str(sdk_folder() / "rust")))  # a string of TOML, too
    readme = RUST_README.format(name=name)
    return {"Cargo.toml": manifest, "src/lib.rs": RUST_PROGRAM, "README.md": readme, ".gitignore": "/target\n"}


def check_name(name: str) -> None:
    """Raises BadRequest unless `test_NAME.py` and the folder can be imported, and hide no module."""
    reason = ""
    if not name.isidentifier() or not name.isascii():
        reason = "take letters, digits and underscores, and no digit in front"
    elif keyword.iskeyword(name) or keyword.issoftkeyword(name):
        reason = "it is a word of Python"
    elif name in sys.stdlib_module_names or name in ("inferlet_sdk", "pie_control", "pie_inference", "pytest", "test"):
        reason = "a module has that name, which the folder would hide"
    elif len(name) > MOST_LETTERS or LOOKS_LIKE_A_HASH.fullmatch(name):
        reason = f"take at most {MOST_LETTERS} letters, and no name that could be the beginning of a program's hash"
    if reason:
        raise BadRequest(f"an inferlet cannot be called {name!r}: {reason}")


MOST_LETTERS = 64
