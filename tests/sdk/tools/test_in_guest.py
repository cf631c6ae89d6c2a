"""Tools and values of a type in the sandbox, on the real control layer, with a model that writes a script."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from pie_control.testing.in_process import InProcessClient
from pie_inference.testing.byte_tokenizer import END
from tests.helpers.chat_templates import MISTRAL
from tests.helpers.guard import HANG_SECONDS
from tests.helpers.scripted_model import ScriptedModel, State
from tests.helpers.servers import launch, started

SPECIAL = ("[TOOL_CALLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[INST]", "[/INST]")
CALLS, RESULTS, RESULTS_END, ASKED, ASKED_END = range(259, 264)

PROGRAM = """
from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Annotated

from inferlet_sdk import *

@dataclass
class Person:
    name: str
    age: Annotated[int, "in years"]

@tool
async def add(a: int, b: int = 1) -> int:
    '''Adds two numbers.

    Args:
        a: the first
    '''
    await asyncio.sleep(0.001)
    return a + b

def who() -> Person:
    return Person("Mia", 7)

async def main(args):
    happened = []
    async with Context(args.model) as ctx:
        tools = Tools(add, who)
        answer = await tools.chat(ctx, "What is 2 plus 3?", max_tokens=200, on_text=args.send,
                                  on_event=lambda event: happened.append(type(event).__name__))
        calls = [(call.name, call.arguments, call.text) for call in answer.calls]
        text = ctx.text
        person = await ctx.fill_chat("user", "JSON, please").generate_as(Person, 60)
    while traits.usage().pages:
        await asyncio.sleep(0.001)
    usage = traits.usage()
    return [answer.text, calls, happened, person.name, person.age, text.count("Adds two numbers"),
            [usage.embeds < 20, usage.futures]]
"""


def say(text: str) -> list[int]:
    """Tokens of a text with markers of calls."""
    first, *others = text.split("[TOOL_CALLS]")
    return [*first.encode(), *(token for other in others for token in (CALLS, *other.encode())), END]


CALL = 'Let me see. [TOOL_CALLS] [{"name": "add", "arguments": {"a": 2, "b": 3}}, {"name": "who", "arguments": {}}]'


def next_token(state: State) -> int:
    """Calls two tools, reads what they gave, and answers; then writes JSON."""
    seen = [token for token, _ in state]
    if seen.count(ASKED) == 2:
        reply = say('{"name": "Mia", "age": 7}')
    elif RESULTS_END in seen:
        given = bytes(token for token in seen[seen.index(RESULTS) :] if token < 256)
        reply = say(f"It is {'5' if b'5' in given and b'Mia' in given else 'unknown'}.")
    else:
        reply = say(CALL)
    start = max(place for place, token in enumerate(seen) if token in (RESULTS_END, ASKED_END)) + 1
    return reply[min(len(seen) - start, len(reply) - 1)]


async def play(cache: Path) -> tuple[Any, list[str]]:
    client = InProcessClient(ScriptedModel(next_token, MISTRAL, SPECIAL))
    async with started(cache, client) as server, asyncio.timeout(HANG_SECONDS):
        _, listener = await launch(server, PROGRAM)
        ended = await listener.ended
        assert ended.status == "finished", ended.error
        return json.loads(ended.result or ""), listener.messages


def test_a_model_calls_tools_in_the_sandbox(guest_cache: Path) -> None:
    result, messages = asyncio.run(play(guest_cache))
    assert "".join(messages) == "Let me see. It is 5."
    text, calls, happened, name, age, declared, freed = result
    assert text == "It is 5."
    assert calls == [["add", {"a": 2, "b": 3}, "5"], ["who", {}, '{"name": "Mia", "age": 7}']]
    told = [one for one in happened if one != "Text"]
    assert told[:2] == ["CallStarted", "Call"]
    assert sorted(told) == ["Call", "Call", "CallResult", "CallResult", "CallStarted", "CallStarted"]
    assert (name, age, declared) == ("Mia", 7, 1)
    assert freed == [True, 0]
