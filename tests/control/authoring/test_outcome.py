"""What `inferlet_sdk.testing.run` tells of a run, in a script of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.helpers.tree import ROOT

PROGRAM = """
from inferlet_sdk import Context, Sampler, inferlet

@inferlet
async def main(args):
    ctx = Context(args.model).fill("abc")
    ctx.fill([await ctx.sample(Sampler(0.7, seed=3))])
    async for _ in ctx.generate(max_tokens=3):
        pass
    return ctx.tokens[3:]
"""
SCRIPT = """
from inferlet_sdk.testing import run, use_fake_model
use_fake_model()
outcome = run("program.py")
print(outcome.tokens == outcome.result, len(outcome.tokens))
"""


def test_every_token_is_told_and_the_script_ends_in_silence(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "script.py").write_text(SCRIPT)
    command, environment = [sys.executable, "script.py"], {"PYTHONPATH": str(ROOT), "HOME": str(tmp_path)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("True 4\n", "")
