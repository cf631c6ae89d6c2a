"""schemathesis over a description of an API, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.helpers.guard import HANG_SECONDS


def check_answers(folder: Path, description: str, examples: int, *options: str, config: Path | None = None) -> str:
    """Asks what a description, a file of `folder` or a URL, allows, and fails if an answer is not as described. Returns
    what schemathesis has told. `examples`: requests of each operation."""
    command = [sys.executable, "-m", "schemathesis.cli", *(["--config-file", str(config)] if config else [])]
    amount = ["--max-examples", str(examples), "--generation-deterministic", "--request-timeout", str(HANG_SECONDS)]
    found = subprocess.run(
        [*command, "run", description, *amount, *options],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=20 * HANG_SECONDS,
        check=False,
    )
    assert found.returncode == 0, found.stdout
    return found.stdout
