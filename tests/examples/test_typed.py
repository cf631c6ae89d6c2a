"""What authors write against the SDK is typed end to end: checked as in their own projects, where the SDK is installed
and only its types are seen."""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

from pie_control.authoring.new import make
from tests.helpers.tree import ROOT

LIKE_AN_EDITOR = ("--strict", "--allow-untyped-defs", "--allow-incomplete-defs", "--allow-untyped-calls")
"""Programs need no annotations; what is inside of them is checked."""
WRONG = """
from inferlet_sdk import Context

async def main(args):
    ctx = Context(args.model)
    await ctx.generate_until(max_tokens="many")
    return ctx.fil("x")
"""


def environment(folder: Path) -> Path:
    """The interpreter of an environment that has the SDK, and nothing else."""
    venv.create(folder, symlinks=True)
    (site,) = folder.glob("lib/python3*/site-packages")
    (site / "inferlet_sdk").symlink_to(ROOT / "inferlet_sdk")
    return folder / "bin" / "python"


def checked(folder: Path, *files: Path) -> str:
    command = [sys.executable, "-m", "mypy", *LIKE_AN_EDITOR, "--config-file", "", "--no-error-summary"]
    where = ["--cache-dir", str(folder / "cache"), "--python-executable", str(environment(folder / "env"))]
    done = subprocess.run([*command, *where, *map(str, files)], capture_output=True, text=True, cwd=folder, check=False)
    return done.stdout + done.stderr


def test_examples_and_new_programs_have_no_wrong_types_and_a_wrong_one_has(tmp_path: Path) -> None:
    found = (ROOT / "examples" / "inferlets").glob("*/*.py")
    examples = sorted(path for path in found if path.name != "check.py")
    assert len(examples) > 10
    story = make("story", tmp_path)
    wrong = tmp_path / "wrong.py"
    wrong.write_text(WRONG)
    said = checked(tmp_path, *examples, *sorted(story.glob("*.py")), wrong).splitlines()
    assert "\n".join(line for line in said if not line.startswith("wrong.py:")) == ""
    assert [line.split()[0] for line in said if "error:" in line] == ["wrong.py:6:", "wrong.py:7:"]
