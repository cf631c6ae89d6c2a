"""What docs/from-openai.md shows: its programs are uploaded, and its clients run."""

from __future__ import annotations

import re
from typing import Any

from pie_control.client import SyncClient
from tests.helpers.tree import ROOT

BLOCK = re.compile(r"```python\n(?:# (\w+)\.py\n)?(.*?)```", re.DOTALL)


def test_what_the_page_shows_runs(server: str) -> None:
    page = (ROOT / "docs" / "from-openai.md").read_text("utf-8")
    blocks = BLOCK.findall(page.replace("http://127.0.0.1:8011", server).replace('"demo', '"fake'))
    assert {name for name, _ in blocks} >= {"", "careful"}
    printed: list[str] = []
    names: dict[str, Any] = {"print": lambda text, **_: printed.append(text)}
    for name, code in blocks:
        if name:
            with SyncClient(server) as uploader:
                uploader.upload(code.encode(), name)
        else:
            exec(code, names)  # in one namespace, as a reader goes on
    whole, *pieces, careful = printed
    assert whole
    assert "".join(pieces)
    assert careful
    asked: dict[str, Any] = {"model": "fake+careful", "messages": [{"role": "user", "content": "What is 3 plus 4?"}]}
    chunks = names["client"].chat.completions.create(**asked, stream=True)
    assert [chunk.choices[0].delta.content for chunk in chunks] == [careful]
