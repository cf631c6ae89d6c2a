"""The agent's world: what it knows, its tools, its HTTP and MCP, and what of it is bad on purpose."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from examples.world.serving import LARGEST_BODY, Served, Settings, World, serving
from examples.world.tools import MOST_KEPT, ToolFailed, compute
from examples.world.village import Village
from pie_control.testing.fake_model import FakeModel
from pie_control.testing.in_process import InProcessClient
from tests.helpers.guard import HANG_SECONDS
from tests.helpers.servers import run, started
from tests.helpers.tree import ROOT

AGENT = """
from inferlet_sdk import PieError, Tools, inferlet

@inferlet
async def main(args, url: str):
    tools, said = await Tools.from_mcp(url), []
    said.append(await tools["friend"](person="Mia"))
    for name in ("garbage", "flood", "liar"):
        try:
            said.append(await tools[name]())
        except PieError as error:
            said.append(error.message)
    try:
        await tools["friend"](person="nobody")
    except PieError as error:
        said.append(error.message)
    try:
        await Tools.from_mcp(url.replace("/mcp", "/pages/Mia"))
    except PieError as error:
        said.append(error.message)
    return said
"""


def asking(settings: Settings, test: Callable[[Served, httpx.AsyncClient], Awaitable[Any]]) -> Any:
    async def main() -> Any:
        async with (
            asyncio.timeout(HANG_SECONDS),
            serving(settings) as served,
            httpx.AsyncClient(base_url=served.url, trust_env=False) as client,
        ):
            return await test(served, client)

    return asyncio.run(main())


@pytest.mark.parametrize("look_ups", range(1, 9))
def test_a_question_is_answered_by_its_look_ups(look_ups: int) -> None:
    village = Village(3)
    question = village.question(random.Random(look_ups), look_ups)
    subject = question.steps[0].subject
    assert subject in question.text
    assert len(question.steps) == look_ups == question.text.count("'s ")
    assert len({step.relation for step in question.steps}) == look_ups
    for step in question.steps:
        assert step.subject == subject
        subject = village.look_up(step.relation, step.subject)
        assert subject == step.result
    assert subject == question.answer
    assert subject not in question.text


def test_a_seed_is_a_village() -> None:
    def told(seed: int) -> list[str]:
        return [Village(seed).look_up("friend", name) for name in ("Mia", "leo", " Rosa ")]

    assert told(1) == told(1) != told(2)
    assert Village(1).question(random.Random(5), 4) == Village(1).question(random.Random(5), 4)
    assert Village(1).look_up("owner", "the kite") == Village(1).look_up("owner", "kite")
    assert Village(1).look_up("price", "kite").isdecimal()


def test_a_village_may_have_relations_that_nobody_knows() -> None:
    village = Village(0, ["godmother", "chess_partner"])
    question = village.question(random.Random(0), 2, ["godmother", "chess_partner"])
    assert question.text.count("'s chess partner") == question.text.count("'s godmother") == 1
    with pytest.raises(ValueError, match="'friend' cannot be a relation: take a new name"):
        Village(0, ["friend"])
    with pytest.raises(ValueError, match="no chain of 2 look-ups leads through owner"):
        village.question(random.Random(0), 2, ["owner"])
    with pytest.raises(ValueError, match="9 look-ups are none of 1 to 8"):
        village.question(random.Random(0), 9)


def test_pages_say_what_look_ups_say() -> None:
    village = Village(0)
    assert village.search("Who is Mia?")[0] == "Mia"
    assert village.search("what colour is the sky")[0] == "What colour is the sky"
    assert village.page("what colour is the sky") == "The sky is blue."
    assert village.page("Rosa").startswith("Rosa works as a baker at the bakery.")
    assert f"Mia has a friend called {village.look_up('friend', 'Mia')}." in village.page("mia")
    assert f"The bakery has a caretaker called {village.look_up('caretaker', 'bakery')}." in village.page("bakery")
    assert f"Mia has an age of {village.look_up('age', 'Mia')}." in village.page("mia")


def test_the_calculator_computes_and_nothing_else() -> None:
    assert [compute(one) for one in ("12 + 30 * 2", "-(2 - 5)", "7 / 2", "7 // 2")] == ["72", "3", "3.5", "3"]
    assert [compute(one) for one in ("12345678 / 2", "0.1 + 0.2", "8 / 2")] == ["6172839", "0.3", "4"]
    for wrong in ("__import__('os')", "2 ** 9", "1 +", "(" * 500, "True", "'a' * 9"):
        with pytest.raises(ToolFailed, match="is no sum: write one"):
            compute(wrong)
    with pytest.raises(ToolFailed, match="divided by 0"):
        compute("1 / 0")
    with pytest.raises(ToolFailed, match="too large"):
        compute("*".join(["9999999999"] * 9))
    with pytest.raises(ToolFailed, match="say it shorter"):
        compute("1" * 2000)


def test_plain_http() -> None:
    async def test(served: Served, client: httpx.AsyncClient) -> None:
        async def said(path: str, **query: str) -> tuple[int, str]:
            answer = await client.get(path, params=query)
            return answer.status_code, answer.text

        village = served.world.village
        assert await said("/tools/friend", person="Mia") == (200, village.look_up("friend", "Mia"))
        assert await said("/pages/Mia") == (200, village.page("Mia"))
        assert (await client.post("/tools/remember", json={"key": "a", "value": "b"})).text == "ok"
        assert await said("/tools/recall", key="A") == (200, "b")
        assert await said("/tools/events", day="Monday") == (200, "there is nothing on Monday")
        assert await said("/tools/add_event", day="Monday", text="tea") == (200, "tea is on Monday")
        assert await said("/tools/events", day="monday") == (200, "tea")
        assert await said("/tools/send_mail", person="Rosa", text="hello") == (200, "sent")
        assert await said("/tools/inbox", person="Rosa") == (200, "hello")
        assert "friend" in {one["name"] for one in (await client.get("/tools")).json()}
        assert (await said("/tools/recall", key="x")) == (422, "nothing was kept as 'x'")
        assert (await said("/tools/magic"))[1].startswith("there is no tool 'magic': there are search, ")
        assert await said("/tools/friend") == (400, 'friend: $: "person" is missing: expected a string')
        assert (await said("/tools/friend", person="Q"))[1].startswith("no person is called 'Q': there are Rosa, ")
        assert await said("/pages/Q") == (422, "there is no page 'Q': search for one")
        for body, words in (
            (b"[", "no JSON:"),
            (b'{"person": "\\ud800"}', "no JSON:"),
            (b'{"person": 1e400}', "no JSON:"),
            (b"[]", "no JSON object:"),
            (b" " * (LARGEST_BODY + 1), "send less"),
        ):
            assert words in (await client.post("/tools/friend", content=body)).text
        assert served.world.called["friend"] == served.world.ended["friend"] == 2

    asking(Settings(), test)


def test_pages_and_names_of_elsewhere_are_refused() -> None:
    async def test(served: Served, client: httpx.AsyncClient) -> None:
        for headers, words in (
            ({"Host": "evil.example"}, "the world does not answer to the name 'evil.example': use 127.0.0.1"),
            ({"Origin": "http://evil.example"}, "pages of another origin (http://evil.example) are refused"),
            ({"Origin": "null"}, "pages of another origin (null) are refused"),
        ):
            answer = await client.post("/mcp", headers=headers, json={"jsonrpc": "2.0", "id": 1, "method": "ping"})
            assert words in answer.text
            assert answer.status_code in (403, 421)
        assert (await client.get("/", headers={"Origin": served.url})).is_success

    asking(Settings(), test)


def test_the_flaky_tool_fails_alike_for_a_seed() -> None:
    async def fails(seed: int, failures: float = 0.5) -> list[bool]:
        world, failed = World(Settings(seed, failures=failures)), []
        for number in range(30):
            await world.call("friend", {"person": "Mia"} if number % 3 else {"person": "Leo"})
            try:
                await world.call("weather", {"city": f"Oslo {number % 5}"})
                failed.append("")
            except ToolFailed as error:
                failed.append(str(error))
        assert set(failed) <= {"", "weather does not answer now: try again"}
        return list(map(bool, failed))

    first = asyncio.run(fails(1))
    assert first == asyncio.run(fails(1)) != asyncio.run(fails(2))
    assert 5 < sum(first) < 25
    assert not any(asyncio.run(fails(1, 0.0)))
    assert all(asyncio.run(fails(1, 1.0)))


def test_what_is_remembered_has_bounds() -> None:
    async def main() -> None:
        world = World(Settings())
        with pytest.raises(ToolFailed, match="say it shorter"):
            await world.call("remember", {"key": "a", "value": "x" * 5000})
        for number in range(MOST_KEPT):
            await world.call("send_mail", {"person": "Rosa", "text": str(number)})
        with pytest.raises(ToolFailed, match="start the world anew"):
            await world.call("send_mail", {"person": "Mia", "text": "one more"})

    asyncio.run(main())


def test_an_inferlet_calls_its_tools_by_mcp_and_is_told_what_is_bad(guest_cache: Path) -> None:
    async def test(served: Served, _: httpx.AsyncClient) -> Any:
        model = InProcessClient(FakeModel(num_pages=64))
        async with started(guest_cache, model, http_allow=served.place) as server:
            return await run(server, AGENT, {"url": served.mcp})

    friend, garbage, flood, liar, nobody, page = asking(Settings(bad=True), test)
    assert friend == Village(0).look_up("friend", "Mia")
    assert "answers the tool garbage with what is no JSON" in garbage
    assert "answers the tool flood with more than 1 MiB, which is not read: ask it for less" in flood
    assert "gives for the tool liar what its own outputSchema excludes: $.number: expected an integer" in liar
    assert "friend failed: no person is called 'nobody': there are Rosa, " in nobody
    assert "is it the right path? It often ends in /mcp" in page


def test_mcp_says_what_is_wrong() -> None:
    async def test(_: Served, client: httpx.AsyncClient) -> None:
        async def said(**message: Any) -> str:
            return json.dumps((await client.post("/mcp", json={"jsonrpc": "2.0", "id": 1, **message})).json())

        assert "the world has no method 'x': it has tools/list and tools/call" in await said(method="x")
        assert "a message has a method" in await said()
        assert "tools/call takes a name" in await said(method="tools/call")
        assert "there is no tool 'x'" in await said(method="tools/call", params={"name": "x"})
        assert '"isError": true' in await said(method="tools/call", params={"name": "friend"})
        assert (await client.get("/mcp")).status_code == 405
        assert (
            await client.post("/mcp", json={"jsonrpc": "2.0", "method": "notifications/initialized"})
        ).status_code == 202
        odd: tuple[dict[str, Any], ...] = ({"jsonrpc": "1.0"}, {"id": {}}, {"id": True}, {"id": 1.5})
        for wrong in odd:
            answer = await client.post("/mcp", json={"jsonrpc": "2.0", "id": 1, "method": "ping", **wrong})
            assert (answer.status_code, answer.json()["error"]["code"]) == (400, -32600)
        responses: tuple[dict[str, Any], ...] = ({"result": {}}, {"error": {"code": 1, "message": "x"}})
        for response in responses:
            assert (await client.post("/mcp", json={"jsonrpc": "2.0", "id": 1, **response})).status_code == 202
        for revision, status in (("2025-06-18", 200), ("2025-03-26", 400), ("soon", 400)):
            headers, ping = {"MCP-Protocol-Version": revision}, {"jsonrpc": "2.0", "id": 1, "method": "ping"}
            assert (await client.post("/mcp", headers=headers, json=ping)).status_code == status

    asking(Settings(), test)


def test_wrong_options_are_sentences() -> None:
    for words, sentence in (
        (["--delay", "-1"], "delay: -0.001 are no seconds from 0 to 3600"),
        (["--failures", "2"], "failures: 2.0 is no share from 0 to 1"),
        (["--relation", "Not so"], "'Not so' cannot be a relation"),
        (["--port", "70000"], "the world cannot be served: "),
    ):
        command = [sys.executable, "-m", "examples.world", *words]
        ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert ended.returncode == 1
        assert sentence in ended.stderr
        assert "Traceback" not in ended.stderr
