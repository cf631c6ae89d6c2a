"""The next turn of a conversation computes only what is new: replies are kept, too."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from inferlet_sdk import Args, Context
from pie_control.authoring.native.program import Source
from pie_control.authoring.native.server import NativeServer, native_server
from pie_control.config import build_config
from pie_control.testing.fake_model import FakeModel
from pie_control.testing.in_process import InProcessClient
from pie_inference.protocol import Forward, RunWave, WaveDone
from tests.control.programs.bundled.launching import BUNDLED, Served, asking

WORDS = {"structured_outputs": {"regex": "[a-z ]{80}"}}
"""Text that is tokenized to the tokens that were generated."""
PAGE = 16


class Counting(FakeModel):
    """Counts the tokens that it runs."""

    def __init__(self, states: int = 0) -> None:
        super().__init__("demo", num_pages=4096, max_context=8192)
        self._description = msgspec.structs.replace(
            self._description, num_states=states, states_by_row=True, state_bytes=2 * self._description.page_bytes
        )
        self.inputs = 0

    def run(self, wave: RunWave) -> WaveDone:
        self.inputs += sum(len(batch.q_embeds) for batch in wave.batches if isinstance(batch, Forward))
        return super().run(wave)


@pytest.fixture(scope="module")
def counted() -> Iterator[tuple[NativeServer, Counting]]:
    model = Counting()
    with native_server(build_config({}).resolved(), lambda *_: InProcessClient(model)) as server:
        asking(server, "chat_completions")(messages=[{"role": "user", "content": "Hi"}], max_tokens=1, **WORDS)
        yield server, model


def told(served: Served) -> tuple[str, int, int, int]:
    """The text of an answer, tokens of the prompt, those of them that were cached, and tokens of the answer."""
    body = served.body
    usage = body["usage"]
    if body.get("type") == "message":
        cached = usage["cache_read_input_tokens"]
        return body["content"][0]["text"], usage["input_tokens"] + cached, cached, usage["output_tokens"]
    if body["object"] == "response":
        cached = usage["input_tokens_details"]["cached_tokens"]
        return body["output"][0]["content"][0]["text"], usage["input_tokens"], cached, usage["output_tokens"]
    text, cached = body["choices"][0]["message"]["content"], usage["prompt_tokens_details"]["cached_tokens"]
    return text, usage["prompt_tokens"], cached, usage["completion_tokens"]


ROUTES = [
    ("chat_completions", "messages", "max_tokens"),
    ("messages", "messages", "max_tokens"),
    ("responses", "input", "max_output_tokens"),
]


def turns(server: NativeServer, program: str, messages: str, most: str, count: int) -> Iterator[tuple[int, int, int]]:
    """A conversation: of each turn the tokens of the prompt, how many of these were there, and those written."""
    ask = asking(server, program)
    said: list[dict[str, Any]] = [{"role": "user", "content": "You are a patient agent. " * 20}]
    for turn in range(count):
        fields = {messages: said, most: 80, "seed": turn, "cache_salt": program, **WORDS}
        text, prompt, cached, written = told(ask(**fields))
        yield prompt, cached, written
        said += [{"role": "assistant", "content": text}, {"role": "user", "content": f"And then {turn}?"}]


@pytest.mark.parametrize(("program", "messages", "most"), ROUTES)
def test_a_turn_computes_only_what_is_new(
    counted: tuple[NativeServer, Counting], program: str, messages: str, most: str
) -> None:
    server, model = counted
    before, reach = model.inputs, 0
    for prompt, cached, written in turns(server, program, messages, most, 5):
        assert model.inputs - before == prompt - cached + written - 1
        assert reach - PAGE < cached <= reach
        reach = prompt + written - 1  # the last token of an answer has no key
        before = model.inputs


@pytest.fixture(scope="module")
def with_states() -> Iterator[tuple[NativeServer, Counting]]:
    model = Counting(states=64)
    with native_server(build_config({}).resolved(), lambda *_: InProcessClient(model)) as server:
        yield server, model


@pytest.mark.parametrize(("program", "messages", "most"), ROUTES)
def test_with_states_a_turn_goes_on_from_the_last_token_that_has_run(
    with_states: tuple[NativeServer, Counting], program: str, messages: str, most: str
) -> None:
    server, model = with_states
    expected, reach = model.inputs, 0
    for turn, (prompt, cached, written) in enumerate(turns(server, program, messages, most, 4)):
        assert cached == reach
        expected += prompt - cached + written - 1
        assert 0 <= model.inputs - expected <= turn + 2, "and the last one of each answer, if there is time"
        reach = prompt + written - 1


def test_a_reply_is_not_kept_for_others(counted: tuple[NativeServer, Counting]) -> None:
    server, _ = counted
    ask = asking(server, "chat_completions")
    said: list[dict[str, Any]] = [{"role": "user", "content": "You are another agent. " * 20}]
    text, *_ = told(ask(messages=said, max_tokens=80, cache_salt="mine", **WORDS))
    said += [{"role": "assistant", "content": text}, {"role": "user", "content": "And then?"}]
    for salt, is_found in (("yours", False), (None, False), ("mine", True)):
        _, _, cached, _ = told(ask(messages=said, max_tokens=1, cache_salt=salt))
        assert (cached > 480) == is_found


def test_conversations_stay_where_their_beginnings_are() -> None:
    """The worker with more free pages would be chosen otherwise: it is the other one, as the second turn begins."""
    models: list[Counting] = []

    def client(*_: object) -> InProcessClient:
        models.append(Counting())
        return InProcessClient(models[-1])

    with native_server(build_config({"replicas": 2}).resolved(), client) as server:
        ask, where = asking(server, "chat_completions"), []
        for turn in range(3):
            for agent in ("an eager", "a patient", "a lazy"):
                before = [one.inputs for one in models]
                said = [{"role": "user", "content": f"You are {agent} agent. " * (20 + turn)}]
                _, _, cached, _ = told(ask(messages=said, max_tokens=1))
                where.append([one.inputs > ran for one, ran in zip(models, before, strict=True)].index(True))
                assert (cached > 256) == (turn > 0)
    assert where[:3] == where[3:6] == where[6:]
    assert set(where) == {0, 1}


def test_prompts_are_pinned_for_those_who_ask_within_a_bound(counted: tuple[NativeServer, Counting]) -> None:
    server, _ = counted
    ask = asking(server, "chat_completions")

    def usage(size: int, **fields: Any) -> Any:
        said = [{"role": "user", "content": f"You are {fields} agent. " + "Be brief. " * size}]
        return ask(messages=said, max_tokens=1, **fields).body["usage"]

    for fields in ({"prompt_cache_key": "mine"}, {"prompt_cache_retention": "24h"}):
        told_of = usage(60, **fields)
        assert told_of["prompt_tokens_details"]["pinned_tokens"] == told_of["prompt_tokens"] // PAGE * PAGE
    assert "pinned_tokens" not in usage(60)["prompt_tokens_details"]
    assert usage(5, prompt_cache_key="short")["prompt_tokens_details"]["pinned_tokens"] == 0
    pinned = [usage(700, prompt_cache_key=str(n))["prompt_tokens_details"]["pinned_tokens"] for n in range(3)]
    assert (pinned[0] > 7000, pinned[2] <= 3 * PAGE) == (True, True)
    assert ask(messages=[{"role": "user", "content": "a"}], prompt_cache_retention="1y").error["param"]


def test_a_named_context_has_a_lease(server: NativeServer) -> None:
    async def main(args: Args) -> list[Any]:
        ctx = Context(args.model).fill("The sun is far away. " * 4)
        return [await ctx.export("sun", lease=60), await ctx.export("moon"), await ctx.pin(5)]

    ended = server.run(Source(BUNDLED / "own.py", "own", lambda: main))
    assert json.loads(ended.result or ended.error or "") == [True, False, 0]
