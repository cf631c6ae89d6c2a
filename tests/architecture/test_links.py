"""Links in the documentation lead to what is there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.helpers.tree import ROOT

PAGES = sorted(
    path
    for folder in ("", "docs", "examples", "benchmarks", "pie_control", "pie_inference", "inferlet_sdk", "tests")
    for path in (ROOT / folder).glob("**/*.md" if folder else "*.md")
    if path != ROOT / "benchmarks" / "paper" / "evaluation.md"  # docs/evaluation.md is made of it
)
CODE = re.compile(r"^```.*?^```|^(?: {4}|\t).*?$|`[^`\n]*`", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ +(.+?) *$", re.MULTILINE)


@cache
def anchors(page: Path) -> frozenset[str]:
    """What can stand behind `#` in a link to a page: its headings, as they are written in links."""
    text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    plain = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading) for heading in HEADING.findall(text))
    return frozenset(re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in plain)


def broken(page: Path, text: str) -> Iterator[str]:
    """The links of a page that lead nowhere. Those to other sites are left alone."""
    for link in LINK.findall(CODE.sub("", text)):
        path, _, anchor = link.partition("#")
        if re.match(r"[a-z]+:", link):
            continue
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            yield link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_to_what_is_there(page: Path) -> None:
    assert list(broken(page, page.read_text("utf-8"))) == []


def test_broken_links_are_found() -> None:
    text = "[a](nothing.md) [b](README.md#no-such) [c](#usage) `[d](code.md)` [e](https://example.com) [f](README.md)"
    assert list(broken(ROOT / "README.md", text)) == ["nothing.md", "README.md#no-such", "#usage"]
