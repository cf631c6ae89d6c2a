"""What the playground's check finds, and what it refuses."""

from __future__ import annotations

import asyncio
import json

import pytest

from pie_control.dashboard import checking
from pie_control.dashboard.checking import Checker
from pie_control.dashboard.examples import examples
from pie_control.errors import BadProgram, BadRequest

WRONG = b"from inferlet_sdk import Context\n\nasync def main(args):\n    Context(args.model).fil('x')\n"


def test_findings_are_those_of_pie_check() -> None:
    async def check() -> None:
        checker = Checker()
        right, wrong, syntax = await asyncio.gather(
            checker.check(b"async def main(args):\n    return 1\n", "alice"),
            checker.check(WRONG, "alice"),
            checker.check(b"def main(:\n", "bob"),
        )
        assert right == []
        assert [(one["file"], one["line"]) for one in wrong] == [("playground.py", 4)]
        assert "fill" in wrong[0]["advice"]
        assert syntax[0]["message"].startswith("SyntaxError")
        with pytest.raises(BadProgram, match=r"cannot read playground\.py"):
            await checker.check(b"\xff", "alice")

    asyncio.run(check())


def test_a_check_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadRequest, match="more than"):
        asyncio.run(Checker().check(b" " * (checking.MOST_BYTES + 1), "alice"))
    with pytest.raises(BadRequest, match="nothing to check"):
        asyncio.run(Checker().check(b"", "alice"))
    monkeypatch.setattr(checking, "SECONDS", 0.0)
    with pytest.raises(BadProgram, match="longer than 0 s"):
        asyncio.run(Checker().check(b"x = 1", "alice"))


def test_findings_are_bounded() -> None:
    """Each tells of its line, which may be all of the program."""
    line = b"input(); " * 200

    async def check() -> None:
        checker = Checker()
        padded = line + b"#" * (checking.MOST_BYTES - 10_000)
        found = await checker.check(b"async def main(args):\n    " + padded, "alice")
        assert len(found) >= 200
        assert len(json.dumps(found)) < checking.MOST_BYTES
        with pytest.raises(BadProgram, match="more findings than"):
            await checker.check(b"async def main(args):\n    " + line * 50, "alice")

    asyncio.run(check())


def test_examples_can_be_loaded() -> None:
    found = json.loads(examples())
    assert {"hello", "react", "tree_of_thought"} <= set(found)
    assert found["text_completion"]["arguments"].startswith("'Once upon a time' --max-tokens")
    assert all(one["source"] and one["about"] for one in found.values())
