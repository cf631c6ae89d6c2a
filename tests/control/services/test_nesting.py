"""The bound on nesting: what it lets through is never deeper than it says, whatever stands in strings."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pie_control.errors import InvalidArgument
from pie_control.services.nesting import MAX_DEPTH, check_depth
from tests.helpers.guard import HANG_SECONDS
from tests.helpers.tiers import corpus
from tests.helpers.tree import ROOT

CHARACTERS = st.text(st.sampled_from('[]{}"\\,:aé\n\ud800'), max_size=12)
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.integers() | CHARACTERS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(CHARACTERS, inner, max_size=3),
)


def depth_of(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + max(map(depth_of, value.values()), default=0)
    return 1 + max(map(depth_of, value), default=0) if isinstance(value, list) else 0


def is_refused(text: str, most: int) -> bool:
    try:
        check_depth(text, "the text", most)
    except InvalidArgument:
        return True
    return False


@given(VALUES, st.booleans(), st.integers(-2, 2))
def test_exactly_what_is_deeper_is_refused(value: Any, ascii_only: bool, more: int) -> None:
    depth = depth_of(value)
    most = max(0, depth + more)
    assert is_refused(json.dumps(value, ensure_ascii=ascii_only), most) == (depth > most)


@given(st.text(st.sampled_from('[]{}"\\,:1a'), max_size=30))
@settings(max_examples=300)
def test_whatever_a_parser_takes_was_measured(text: str) -> None:
    try:
        depth = depth_of(json.loads(text))
    except ValueError:
        is_refused(text, 1)  # does not fail
        return
    assert is_refused(text, depth) is False
    assert depth == 0 or is_refused(text, depth - 1)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 500_000,
        '{"a":' * 100_000,
        '"\\' * 250_000,
        '["' * 250_000,
        '\\"' * 250_000 + "[" * 500,
        '"' + "\\" * 499_999,
        "]" * 200_000 + "[" * 200_000,
    ],
    ids=lambda text: text[:8],
)
def test_any_long_text_is_measured(text: str) -> None:
    is_refused(text, MAX_DEPTH)


DEEP = """
import asyncio, sys
from pathlib import Path
sys.path.insert(0, ".")
import pie_inference.testing.byte_tokenizer as byte_tokenizer
from pie_control.testing.fake_model import FakeModel
from pie_control.testing.in_process import InProcessClient
from tests.helpers.servers import run, started

PROGRAM = '''
import sys
from inferlet_sdk.bindings import core, tokenize
from inferlet_sdk.errors import call
sys.setrecursionlimit(100000)

def below(levels, do):
    return do() if levels == 0 else max([0], key=lambda _: below(levels - 1, do) or 0)

def main(args):
    queue = core.create_queue(args.model)
    said = []
    def ask():
        for opened, closed in (("[", "]"), ('{"a":', "}")):
            for depth in (100, 990, 9_000, 9_900, 9_990, 20_000, 50_000):
                content = opened * depth + "1" + closed * depth
                chat = '[{"role": "user", "content": ' + content + "}]"
                for messages, tools in ((chat, ""), ('[{"role": "user", "content": "x"}]', f"[{content}]")):
                    try:
                        call(tokenize.format_chat, queue, messages, tools, True)
                        said.append("fine")
                    except Exception as error:
                        said.append(str(error))
    below(LEVELS, ask)
    return said
'''

async def main(template, levels):
    byte_tokenizer.CHAT_TEMPLATE = template
    client = InProcessClient(FakeModel())
    async with started(Path(sys.argv[1]), client, warm_pool=0) as server:
        for said in await run(server, PROGRAM.replace("LEVELS", levels)):
            assert said == "fine" or "deeper than" in said or "can only concatenate" in said, said
        print("alive")

asyncio.run(main(*sys.argv[2:]))
"""


TEMPLATES = {
    "dumps": "{{ messages | tojson }}{{ tools | tojson }}",
    "prints": "{% for message in messages %}{{ message['content'] }}{% endfor %}{{ tools }}",
    "fails": "{% for message in messages %}{{ 'x' + message['content'] }}{% endfor %}",
}
NESTED = [(name, levels) for levels in ("220", "0") for name in TEMPLATES]


@pytest.mark.parametrize("tried", corpus(NESTED, kind=lambda one: one[0]), ids="-".join)
def test_no_nesting_ends_the_process(guest_cache: Path, tried: tuple[str, str]) -> None:
    """In a process of its own, since an overflow would end this one. The guest uses its own stack first, of so many
    levels."""
    template, levels = tried
    command = [sys.executable, "-c", DEEP, str(guest_cache), TEMPLATES[template], levels]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ, capture_output=True, text=True, timeout=HANG_SECONDS, check=False
    )
    assert (done.returncode, done.stdout) == (0, "alive\n"), done.stderr[-3000:]
