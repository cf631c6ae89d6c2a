"""The files of a new inferlet."""

from __future__ import annotations

import keyword
import sys
from pathlib import Path

from ..errors import BadRequest

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


def make(name: str, parent: Path) -> Path:
    """Writes the files of an inferlet into a new folder, and returns that. Raises BadRequest."""
    check_name(name)
    folder = parent / name
    try:
        folder.mkdir()
    except FileExistsError:
        raise BadRequest(f"{folder} is there already: take another name, or remove it") from None
    except OSError as error:
        raise BadRequest(f"cannot make {folder}: {error.strerror}") from None
    files = {"main.py": PROGRAM, f"test_{name}.py": TEST, "README.md": README.format(name=name)}
    for file, text in files.items():
        (folder / file).write_text(text, "utf-8")
    return folder


def check_name(name: str) -> None:
    """Raises BadRequest unless `test_NAME.py` and the folder can be imported, and hide no module."""
    reason = ""
    if not name.isidentifier() or not name.isascii():
        reason = "take letters, digits and underscores, and no digit in front"
    elif keyword.iskeyword(name) or keyword.issoftkeyword(name):
        reason = "it is a word of Python"
    elif name in sys.stdlib_module_names or name in ("inferlet_sdk", "pie_control", "pie_inference", "pytest", "test"):
        reason = "a module has that name, which the folder would hide"
    elif len(name) > MOST_LETTERS or _looks_like_hash(name):
        reason = f"take at most {MOST_LETTERS} letters, and no name that could be the beginning of a program's hash"
    if reason:
        raise BadRequest(f"an inferlet cannot be called {name!r}: {reason}")


MOST_LETTERS = 64


def _looks_like_hash(name: str) -> bool:
    """The server refuses such names."""
    return len(name) >= 8 and set(name) <= set("0123456789abcdef")
