"""The dashboard over a whole server: its stream, and its page in a browser."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from pie_control.client import Client
from pie_control.dashboard import viewers
from pie_control.errors import TooManyRequests
from pie_control.server_api import ServerApi
from pie_control.testing.fake_model import FakeModel
from pie_control.testing.in_process import InProcessClient
from testing.browser import Page
from tests.control.tenants.test_accounts import ALICE, BOB, written
from tests.helpers.browser import chromium_or_skip
from tests.helpers.guard import HANG_SECONDS
from tests.helpers.live_server import live_server
from tests.helpers.servers import cache_with_guest, started

TENANTS = f"""
[tenants.alice]
tokens = ["{ALICE}"]
may_see_all = true

[tenants.bob]
tokens = ["{BOB}"]
"""
GENERATES = b"""
from inferlet_sdk import Context

async def main(args):
    context = Context(args.model)
    context.fill("abc")
    async for _ in context.generate(max_tokens=5):
        pass
    print("<img src=x onerror=alert(1)>")
    await args.send("here")
    return await args.receive()
"""
PARTS = ("free", "coming", "pinned", "shared", "others")


class Seen:
    """What a viewer has been told so far."""

    def __init__(self) -> None:
        self.about: dict[str, list[Any]] = {}
        self.now: dict[str, list[Any]] = {}
        self.sections: dict[str, Any] = {}
        self.waves: list[list[Any]] = []

    def take(self, delta: dict[str, Any]) -> None:
        for name in ("about", "now", "sections"):
            getattr(self, name).update(delta.get(name, {}))
        self.waves += delta.get("waves", [])


async def look(url: str, token: str, until: Callable[[Seen], bool], looks: asyncio.Event | None = None) -> Seen:
    """Looks until what was seen is enough; `looks` is set once it does."""
    seen = Seen()
    headers = {"authorization": f"Bearer {token}"}
    async with (
        httpx.AsyncClient(base_url=url, trust_env=False, timeout=HANG_SECONDS) as web,
        web.stream("GET", "/v1/dashboard", headers=headers) as answer,
    ):
        assert answer.status_code == 200, await answer.aread()
        async for line in answer.aiter_lines():
            if line.startswith("data: "):
                seen.take(json.loads(line[6:]))
                if looks is not None:
                    looks.set()
                if until(seen):
                    return seen
    raise AssertionError("the stream ended")


def test_a_viewer_sees_what_its_tenant_may(tmp_path: Path, guest_cache: Path) -> None:
    async def check(url: str) -> None:
        def generated(seen: Seen) -> bool:
            return any(now[3] >= 5 for now in seen.now.values()) and bool(seen.waves)

        looks = asyncio.Event()
        watching = asyncio.create_task(look(url, ALICE, generated, looks))
        await looks.wait()
        async with Client(url, BOB) as bob, Client(url, ALICE) as alice:
            of_bob = await bob.launch(await bob.upload(GENERATES, "of bob"))
            assert await of_bob.receive() == "here"
            all_seen = await watching
            of_alice = await alice.launch(await alice.upload(b"async def main(args): await args.receive()", "of alice"))
            both = await look(url, ALICE, lambda seen: len(seen.about) == 2)
            mine = await look(url, BOB, lambda seen: bool(seen.about))
            assert [about[:3] for about in mine.about.values()] == [[of_bob.id, "bob", "of bob"]]
            assert [one["tenant"] for one in mine.sections["tenants"]] == ["bob"]
            assert mine.sections["hosts"] == []
            assert mine.sections["counts"] == {"all": False, "running": 1, "launched": None}
            assert "queues" not in mine.sections["workers"][0]
            assert {about[1] for about in both.about.values()} == {"alice", "bob"}
            assert both.sections["counts"]["running"] == 2
            assert both.sections["hosts"][0]["inferlets"] == 2
            worker, number = both.sections["workers"][0], of_bob.id[1:]
            pages = worker["pages"]
            assert pages["owners"][number] > 0
            assert pages["total"] == sum(pages["owners"].values()) + sum(map(pages.get, PARTS))
            assert worker["queues"]["waiting"] == 0
            assert (worker["states"], len(worker["embeds"])) == ([0, 0], 2)
            assert of_alice.id in {about[0] for about in both.about.values()}
            assert await _log_of(url, ALICE, of_bob.id) == (200, ["<img src=x onerror=alert(1)>"])
            assert (await _log_of(url, BOB, of_alice.id))[0] == 404
            await _until_noted(url, ("alice", "logs", of_bob.id))
        commands = {call for wave in all_seen.waves for call in wave[6]}
        assert {"embed_txt", "forward", "sample"} <= commands
        assert all(wave[6].keys() and wave[5] >= 1 for wave in all_seen.waves)

    tenants = written(tmp_path, TENANTS)
    with live_server(
        cache_with_guest(_made(tmp_path), guest_cache), tenants=str(tenants), state=str(tmp_path / "state")
    ) as url:
        asyncio.run(asyncio.wait_for(check(url), HANG_SECONDS))


async def _until_noted(url: str, deed: tuple[str, str, str]) -> None:
    """Waits until the audit log has it: it is written behind what it tells of."""
    async with httpx.AsyncClient(base_url=url, trust_env=False, headers={"authorization": f"Bearer {ALICE}"}) as web:
        noted: set[tuple[str, str, str]] = set()
        while deed not in noted:
            found = (await web.get("/v1/audit")).json()["data"]
            noted = {(one["tenant"], one["action"], one["subject"]) for one in found}
    assert not [one for one in noted if one[0] == "bob" and one[1] == "logs"]


async def _log_of(url: str, token: str, inferlet: str) -> tuple[int, list[str]]:
    headers = {"authorization": f"Bearer {token}"}
    async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=HANG_SECONDS, headers=headers) as web:
        answer = await web.get(f"/v1/inferlets/{inferlet}/logs")
        return answer.status_code, [line["text"] for line in answer.json()] if answer.is_success else []


def test_a_viewer_sees_the_line_of_its_tenant(tmp_path: Path, guest_cache: Path) -> None:
    def line() -> list[dict[str, Any]]:
        return [{"tenant": name, "served": 1, "waiting": 2, "oldest_wait": 0.5} for name in ("alice", "bob")]

    async def check() -> None:
        async with started(cache_with_guest(_made(tmp_path), guest_cache), InProcessClient(FakeModel())) as api:
            with api.dashboard.viewer(None, line) as of_all, api.dashboard.viewer("bob", line) as of_bob:
                assert of_all.look().sections["line"] == line()
                assert of_bob.look().sections["line"] == line()[1:]

    asyncio.run(check())


def test_without_viewers_nothing_is_watched(tmp_path: Path, guest_cache: Path) -> None:
    async def check() -> None:
        async with started(cache_with_guest(_made(tmp_path), guest_cache), InProcessClient(FakeModel())) as api:
            own = _counts(api)
            with api.dashboard.viewer(None) as first, api.dashboard.viewer("nobody") as second:
                assert len(own.on_sent) == len(own.on_answered) == 1
                first.look()
                assert second.look().now == {}
            assert own.on_sent == own.on_answered == []

    asyncio.run(check())


def test_viewers_of_a_tenant_leave_room_for_others(tmp_path: Path, guest_cache: Path) -> None:
    async def check() -> None:
        async with started(cache_with_guest(_made(tmp_path), guest_cache), InProcessClient(FakeModel())) as api:
            with contextlib.ExitStack() as looking:
                for _ in range(viewers.MOST_OF_TENANT):
                    looking.enter_context(api.dashboard.viewer("alice"))
                with pytest.raises(TooManyRequests, match="4 viewers of this tenant"):
                    looking.enter_context(api.dashboard.viewer("alice"))
                for other in ("bob", *[None] * (viewers.MOST_VIEWERS - viewers.MOST_OF_TENANT - 1)):
                    looking.enter_context(api.dashboard.viewer(other))
                with pytest.raises(TooManyRequests, match="16 viewers"):
                    looking.enter_context(api.dashboard.viewer(None))

    asyncio.run(check())


def test_viewers_are_bounded(tmp_path: Path, guest_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(viewers, "MOST_VIEWERS", 1)

    async def check(url: str) -> None:
        async with (
            httpx.AsyncClient(base_url=url, trust_env=False, timeout=HANG_SECONDS) as web,
            web.stream("GET", "/v1/dashboard") as answer,
        ):
            lines = answer.aiter_lines()  # kept: the end of it would close the stream
            await anext(lines)
            refused = await web.get("/v1/dashboard")
            assert (refused.status_code, refused.json()["error"]["code"]) == (429, "too-many-requests")

    with live_server(cache_with_guest(_made(tmp_path), guest_cache)) as url:
        asyncio.run(asyncio.wait_for(check(url), HANG_SECONDS))


NOTING_SPANS = """
window.spans = [];
const Chart = uPlot;
window.uPlot = class extends Chart {
  constructor(...given) {
    super(...given);
    const set = this.setData;
    this.setData = (data) => {
      set(data);
      if (data[0].length) setTimeout(() => spans.push(this.scales.x.max - this.scales.x.min));
    };
  }
};
null
"""
"""How many seconds charts show, once they have a point."""


def test_the_page_in_a_browser(tmp_path: Path, guest_cache: Path) -> None:
    async def launch(url: str) -> None:
        async with Client(url, ALICE) as alice:
            running = await alice.launch(await alice.upload(GENERATES, "<b>bold<b>"), detached=True)
            assert await running.receive() == "here"

    tenants = written(tmp_path, TENANTS)
    with (
        chromium_or_skip() as page,
        live_server(cache_with_guest(_made(tmp_path), guest_cache), tenants=str(tenants)) as url,
    ):
        page.open(f"{url}/")
        page.until("document.activeElement?.type === 'password'")
        page.value(NOTING_SPANS)
        page.type(ALICE)
        page.ask("Runtime.evaluate", expression="document.querySelector('form button').click()")
        page.until("document.querySelector('main[data-ready=true] .scroll') !== null")
        asyncio.run(launch(url))
        page.until("spans.length > 2")
        assert page.value("Math.max(...spans)") < 60, "of charts with one point, too"
        page.until("document.querySelectorAll('.scroll tbody tr').length === 1")
        row = page.value("document.querySelector('.scroll tbody tr').innerText")
        assert "<b>bold<b>" in row, "what inferlets wrote is text"
        sections = "[...document.querySelectorAll('section')]"
        memory = f"{sections}.find((one) => one.querySelector('h2')?.innerText === 'Memory')"
        assert "embeds" in page.value(f"{memory}.querySelector('thead').innerText")
        cut_off = f"{sections}.filter((one) => one.scrollWidth > one.clientWidth).map((one) => one.innerText)"
        assert page.value(cut_off) == []
        assert re.fullmatch(r"\d+ of 992", page.value(f"{memory}.querySelectorAll('tbody td')[1].innerText"))
        page.value("document.querySelector('.scroll').focus()")
        page.press("ArrowDown")
        page.until("document.querySelector('pre')?.innerText.includes('<img src=x onerror=alert(1)>')")
        saved = page.value(
            "import('/assets/save.js').then(async (save) => (await import('/assets/store.js')) && "
            "save.pageAsFile({ time: 1, inferlets: new Map() })).then((blob) => blob.text())"
        )
        assert "<script" not in saved
        assert "&lt;img src=x" in saved
        assert "data:image/png" in saved
        assert page.value("JSON.stringify([document.cookie, localStorage.length, sessionStorage.length])") == '["",0,0]'
        expected = "401"  # before the key was given
        assert [error for error in page.errors if expected not in error] == []


PROGRAM = """from inferlet_sdk import Context

async def main(args, word="one"):
    await args.send(f"<i>{word}</i>")
    context = Context(args.model)
    context.fill("abc")
    async for _ in context.generate(max_tokens=5):
        pass
    raise ValueError("on purpose")
"""


def test_the_playground_in_a_browser(tmp_path: Path, guest_cache: Path) -> None:
    with chromium_or_skip() as page, live_server(cache_with_guest(_made(tmp_path), guest_cache)) as url:
        page.open(f"{url}/playground")
        page.until("document.querySelectorAll('option').length > 10")
        assert page.value(
            "import('/assets/playground.js').then(({ words }) => words(`a --b 'c d' e=\"f g\" it's`))"
        ) == [
            "a",
            "--b",
            "c d",
            "e=f g",
            "it's",
        ]
        stop = "[...document.querySelectorAll('button')].find((one) => one.innerText === 'Stop')"
        assert page.value(f"[{stop}.disabled, getComputedStyle({stop}).opacity]") == [True, "0.5"], "nothing runs"
        page.value("document.querySelector('textarea').select()")
        page.type(PROGRAM.replace("args.send", "args.sent"))
        page.value("document.querySelector('button.check').click()")
        page.until("document.querySelector('.findings')?.innerText.includes('line 4')")
        page.until("document.querySelector('.gutter').children[3].className === 'marked'")
        for name, shown in (("hello", "three facts"), ("", "args.sent")):  # an example, and back to what was written
            page.value(f"document.querySelector('select').value = '{name}'")
            page.value("document.querySelector('select').dispatchEvent(new Event('change', {bubbles: true}))")
            page.until(f"document.querySelector('textarea').value.includes('{shown}')")
        page.value("document.querySelector('textarea').select()")
        page.type(PROGRAM)
        page.value("document.querySelector('input').select()")
        page.type("--word two")
        page.value("document.querySelector('button.run').click()")
        page.until("document.querySelector('pre.error')?.innerText.includes('ValueError: on purpose')")
        assert page.value("document.querySelector('pre.output').innerText") == "<i>two</i>"
        page.until("document.querySelector('.gutter').children[8].className === 'marked'")
        page.until("/5 sample/.test(document.querySelector('canvas').getAttribute('aria-label'))")
        assert page.errors == []


def test_the_playground_runs_where_nobody_more_may_look(
    tmp_path: Path, guest_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(viewers, "MOST_VIEWERS", 0)
    with chromium_or_skip() as page, live_server(cache_with_guest(_made(tmp_path), guest_cache)) as url:
        page.open(f"{url}/playground")
        page.until("document.querySelector('textarea') !== null")
        page.value("document.querySelector('textarea').select()")
        page.type(PROGRAM)
        page.value("document.querySelector('button.run').click()")
        page.until("document.querySelector('pre.output')?.innerText === '<i>one</i>'")
        assert "no calls over time" in page.value("document.querySelector('[role=status]').innerText")
        page.value("document.querySelector('textarea').select()")
        page.type("async def main(args):\n    return await args.receive()\n")
        page.value("document.querySelector('button.run').click()")
        page.until("document.querySelector('form input') !== null")  # it runs, though it has said nothing
        field = "document.querySelector('form input')"
        page.value(f"{field}.focus()")
        page.type("a" * 40)
        page.value(f"{field}.value = {field}.value.repeat(100_000)")
        page.value("document.querySelector('form button').click()")
        page.until("document.querySelector('[role=status]').innerText.includes('the body has')")
        page.until(f"{field}.value.length === 4_000_000")  # what was refused is not lost
        page.value(f"{field}.select()")
        page.type("a word")
        page.value("document.querySelector('form button').click()")
        page.until("document.querySelector('pre.result')?.innerText === '\"a word\"'")
        assert page.value("document.querySelector('form') === null")


def test_the_api_can_be_tried_in_a_browser(tmp_path: Path, guest_cache: Path) -> None:
    tenants = written(tmp_path, TENANTS)
    with (
        chromium_or_skip() as page,
        live_server(cache_with_guest(_made(tmp_path), guest_cache), tenants=str(tenants)) as url,
    ):
        page.open(f"{url}/docs")
        page.until("document.querySelector('.opblock-summary-path') !== null")
        _click(page, "document", "button.authorize")
        page.until("document.querySelector('.auth-container input') !== null")
        page.value("document.querySelector('.auth-container input').focus()")
        page.type(ALICE)
        _click(page, "document", ".auth-container button.authorize")
        models = """document.querySelector('[data-path="/v1/models"]').closest('.opblock')"""
        for button in (".opblock-summary-control", ".try-out__btn", ".execute"):
            _click(page, models, button)
        page.until(f"{models}.querySelector('.live-responses-table .response')?.innerText.includes('FakeModel')")
        assert page.value("JSON.stringify([document.cookie, localStorage.length, sessionStorage.length])") == '["",0,0]'
        assert page.errors == []


def _click(page: Page, within: str, button: str) -> None:
    page.until(f"{within}.querySelector('{button}') !== null")
    page.value(f"{within}.querySelector('{button}').click()")


def _made(folder: Path) -> Path:
    cache = folder / "cache"
    cache.mkdir(mode=0o700)
    return cache


def _counts(api: ServerApi) -> Any:
    (replica,) = api.dashboard.models["fake"].replicas
    assert replica.scheduler is not None
    return replica.scheduler.counts
