"""Frameworks for agents that others wrote, unchanged: a model that calls a tool, reads what came, and answers.

They come with the extra `clients`; without it these tests are left out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from tests.helpers.guard import HANG_SECONDS
from tests.helpers.late import Late
from tests.helpers.live_server import live_server
from tests.helpers.tiers import corpus

openai = Late("openai")

MODEL = "demo-reasoner"
QUESTION, RESULT = "What is the weather in Oslo?", "snowy, 2 degrees"
ANSWER = f"The weather in Oslo is {RESULT}."
SHAPED = "Is Oslo a capital?"
WAYS = corpus([(False, False), (True, False), (False, True), (True, True)], kind=lambda one: "an agent")
"""Whether answers are streamed, and whether they are responses instead of chat completions."""


class Place(BaseModel):
    """Where something is."""

    capital: bool


@pytest.fixture(scope="module")
def url(guest_cache: Path) -> Iterator[str]:
    for package in ("langchain_openai", "agents", "pydantic_ai"):
        pytest.importorskip(package, reason="the extra `clients` is not installed")
    with live_server(guest_cache, model=[MODEL]) as url:
        yield f"{url}/v1"


@pytest.fixture
def asked() -> list[str]:
    """The cities that the tool was asked for."""
    return []


@pytest.fixture
def weather(asked: list[str]) -> Callable[[str], str]:
    """The tool of the agents."""

    def weather(city: str) -> str:
        """tells the weather in a city"""
        asked.append(city)
        return RESULT

    return weather


def connected(url: str) -> Any:
    http = openai.DefaultAsyncHttpxClient(trust_env=False)
    return openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=HANG_SECONDS, http_client=http)


# ---- langchain-openai ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def langchain(url: str) -> Iterator[Callable[..., Any]]:
    """Makes a model of theirs, with options."""
    given = pytest.importorskip("langchain_openai")
    with openai.DefaultHttpxClient(trust_env=False, timeout=HANG_SECONDS) as http:
        options = {"model": MODEL, "base_url": url, "api_key": "none", "temperature": 0, "max_retries": 0}
        yield partial(given.ChatOpenAI, **options, http_client=http)


@pytest.mark.parametrize("way", WAYS)
def test_langchain_runs_an_agent(langchain: Any, weather: Any, asked: list[str], way: tuple[bool, bool]) -> None:
    stream, responses = way
    said = pytest.importorskip("langchain_core.messages")
    tool = pytest.importorskip("langchain_core.tools").tool(weather)
    chat, messages = langchain(use_responses_api=responses).bind_tools([tool]), [said.HumanMessage(QUESTION)]
    for _ in range(4):
        if stream:
            first, *others = chat.stream(messages)
            message = said.message_chunk_to_message(sum(others, first))
        else:
            message = chat.invoke(messages)
        messages.append(message)
        if not message.tool_calls:
            break
        messages += [said.ToolMessage(tool.invoke(one["args"]), tool_call_id=one["id"]) for one in message.tool_calls]
    assert asked == ["Oslo"]
    assert messages[-1].text == ANSWER


def test_langchain_has_structured_output(langchain: Any) -> None:
    for method in ("json_schema", "function_calling"):
        found = langchain(max_tokens=100).with_structured_output(Place, method=method).invoke(SHAPED)
        assert isinstance(found, Place)


# ---- openai-agents ---------------------------------------------------------------------------------------------------


@pytest.fixture
def agents() -> Any:
    """The package, which tells nobody of its runs."""
    given = pytest.importorskip("agents")
    given.set_tracing_disabled(True)
    return given


@pytest.mark.parametrize("way", WAYS)
def test_openai_agents_run(url: str, agents: Any, weather: Any, asked: list[str], way: tuple[bool, bool]) -> None:
    stream, responses = way
    kind = agents.OpenAIResponsesModel if responses else agents.OpenAIChatCompletionsModel
    options = {"tools": [agents.function_tool(weather)], "model_settings": agents.ModelSettings(temperature=0)}

    async def run() -> Any:
        async with connected(url) as client:
            agent = agents.Agent("A", model=kind(MODEL, client), **options)
            if not stream:
                return (await agents.Runner.run(agent, QUESTION, max_turns=4)).final_output
            result = agents.Runner.run_streamed(agent, QUESTION, max_turns=4)
            assert "raw_response_event" in [event.type async for event in result.stream_events()]
            return result.final_output

    assert asyncio.run(run()) == ANSWER
    assert asked == ["Oslo"]


def test_openai_agents_have_structured_output(url: str, agents: Any) -> None:
    options = {"output_type": Place, "model_settings": agents.ModelSettings(max_tokens=100)}

    async def run() -> None:
        async with connected(url) as client:
            for kind in (agents.OpenAIChatCompletionsModel, agents.OpenAIResponsesModel):
                agent = agents.Agent("A", model=kind(MODEL, client), **options)
                assert isinstance((await agents.Runner.run(agent, SHAPED)).final_output, Place)

    asyncio.run(run())


# ---- pydantic-ai -----------------------------------------------------------------------------------------------------


def pydantic_model(client: Any, responses: bool) -> Any:
    models = pytest.importorskip("pydantic_ai.models.openai")
    provider = pytest.importorskip("pydantic_ai.providers.openai").OpenAIProvider(openai_client=client)
    return (models.OpenAIResponsesModel if responses else models.OpenAIChatModel)(MODEL, provider=provider)


@pytest.mark.parametrize("way", WAYS)
def test_pydantic_ai_runs_an_agent(url: str, weather: Any, asked: list[str], way: tuple[bool, bool]) -> None:
    stream, responses = way
    pydantic_ai = pytest.importorskip("pydantic_ai")
    agent = pydantic_ai.Agent(tools=[weather], model_settings={"temperature": 0.0})

    async def run() -> Any:
        async with connected(url) as client:
            model = pydantic_model(client, responses)
            if not stream:
                return (await agent.run(QUESTION, model=model)).output
            async with agent.run_stream(QUESTION, model=model) as result:
                return await result.get_output()

    assert asyncio.run(run()) == ANSWER
    assert asked == ["Oslo"]


def test_pydantic_ai_has_structured_output(url: str) -> None:
    pydantic_ai = pytest.importorskip("pydantic_ai")

    async def run() -> None:
        async with connected(url) as client:
            for kind in (pydantic_ai.NativeOutput, pydantic_ai.ToolOutput):
                for responses in (False, True):
                    agent = pydantic_ai.Agent(pydantic_model(client, responses), output_type=kind(Place))
                    found = await agent.run(SHAPED, model_settings={"max_tokens": 100})
                    assert isinstance(found.output, Place)

    asyncio.run(run())
