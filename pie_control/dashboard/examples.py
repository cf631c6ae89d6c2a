"""The examples that the playground loads."""

from __future__ import annotations

import functools
import json
import shlex
from pathlib import Path

import pie_control

FOLDER = Path(pie_control.__file__).parent / "examples"


@functools.cache
def examples() -> bytes:
    """JSON: of each example, by name, its source, arguments as one line, and what it does."""
    found = {}
    for folder in sorted(FOLDER.iterdir()):
        source = folder / f"{folder.name}.py"
        if source.is_file():
            run = json.loads((folder / "run.json").read_bytes()) if (folder / "run.json").is_file() else {}
            about = (folder / "README.md").read_text().partition("\n\n")[2].partition("\n\n")[0].replace("\n", " ")
            arguments = shlex.join(run.get("arguments", ()))
            found[folder.name] = {"source": source.read_text(), "arguments": arguments, "about": about}
    return json.dumps(found).encode()
