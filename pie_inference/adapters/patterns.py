"""Regular expressions of an adapter's configuration, as PEFT matches them with names of modules.

An expression may take exponential time to match a name. So expressions are matched in a process of their own, for a
limited time; plain names, as most adapters have them, need none.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence

from ..errors import AdapterError

SECONDS = 5.0
"""For all expressions of an adapter and all modules of a model together. An ordinary one takes milliseconds."""
MOST_PATTERNS = 4096
PLAIN = re.compile(r"\w+")

SCRIPT = """
import json, re, sys
patterns, names = json.load(sys.stdin)
try:
    print(json.dumps([[n for n, name in enumerate(names) if re.fullmatch(pattern, name)] for pattern in patterns]))
except re.error as error:
    sys.exit(f"{error.pattern!r} is no regular expression: {error}")
"""


def full_matches(patterns: Sequence[str], names: Sequence[str]) -> list[set[str]]:
    """The names that each pattern matches from end to end. Raises AdapterError."""
    if not patterns:
        return []
    if len(patterns) > MOST_PATTERNS:
        raise AdapterError(f"{len(patterns)} patterns are more than {MOST_PATTERNS}")
    command = [sys.executable, "-I", "-S", "-c", SCRIPT]
    try:
        done = subprocess.run(
            command, input=json.dumps([patterns, names]), capture_output=True, text=True, timeout=SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise AdapterError(
            f"the regular expressions {', '.join(patterns)[:200]} take more than {SECONDS:g} s to match the names of "
            "the model's layers: write them simpler"
        ) from None
    if done.returncode:
        raise AdapterError(done.stderr.strip().rpartition("\n")[2][:500])
    return [{names[n] for n in found} for found in json.loads(done.stdout)]


def suffix_matches(patterns: Sequence[str], names: Sequence[str]) -> list[set[str]]:
    """The names whose last parts each pattern matches: q_proj matches layers.0.q_proj. Raises AdapterError."""
    plain = {p: {n for n in names if n == p or n.endswith(f".{p}")} for p in patterns if PLAIN.fullmatch(p)}
    others = [p for p in patterns if p not in plain]
    found = dict(zip(others, full_matches([rf"(.*\.)?({p})" for p in others], names), strict=True))
    return [plain[p] if p in plain else found[p] for p in patterns]
