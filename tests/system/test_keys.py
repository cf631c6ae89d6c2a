"""Keys of a server that runs: what each allows, and how it ends."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest

from pie_control.cli.main import main
from pie_control.client import Client
from pie_control.errors import BadRequest, Forbidden, Overloaded, RateLimited, Unauthorized
from pie_control.tenants.budgets import Budget
from pie_control.testing.fake_model import FakeModel
from pie_control.testing.in_process import InProcessClient
from tests.helpers.guard import HANG_SECONDS
from tests.helpers.live_server import live_server
from tests.helpers.servers import cache_with_guest, started
from tests.helpers.web import Asked, answer, serving

WAITS = b"async def main(args):\n    await args.send('here')\n    return await args.receive()\n"
FETCHES = b"""
from inferlet_sdk import NotAllowed, http_get

async def main(args, url=""):
    try:
        return await (await http_get(url)).text()
    except NotAllowed as error:
        return str(error)
"""


def test_launches_that_wait_for_their_program_keep_to_the_budget(guest_cache: Path) -> None:
    async def check() -> None:
        async with started(guest_cache, InProcessClient(FakeModel())) as server, asyncio.timeout(HANG_SECONDS):
            program = (await server.upload(WAITS)).program
            with pytest.raises(BadRequest, match="16386 texts, more than 16384"):
                await server.launch(program, [""] * 16_384, environment={"a": ""})
            server.meters.use({"default": Budget(requests_per_minute=5)})
            for host in vars(server)["_hosts"].all:
                vars(server)["_library"].lost(host.programs)
            done = await asyncio.gather(*(server.launch(program) for _ in range(20)), return_exceptions=True)
            assert [isinstance(one, RateLimited) for one in done].count(True) == 15
            assert server.running == 5

    asyncio.run(check())


def test_keys_allow_what_they_say_and_end_when_they_are_revoked(
    tmp_path: Path, guest_cache: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    state = str(tmp_path / "state")
    (tmp_path / "cache").mkdir(mode=0o700)

    def keys(*arguments: str) -> str:
        assert main(["keys", *arguments, "--state", state]) == 0
        return capsys.readouterr().out.strip()

    def add(name: str, may: str, *more: str) -> str:
        return keys("add", "default", "--name", name, "--may", may, *more)

    async def check(url: str) -> None:
        async with Client(url) as anybody:
            waits = await anybody.upload(WAITS, "waits")
            fetches = await anybody.upload(FETCHES, "fetches")
            open_before = await anybody.launch(waits)
            laptop = await asyncio.to_thread(add, "laptop", "launch", "--max-inferlets", "2")
            with pytest.raises(Unauthorized, match="asks for a token or key"):  # from the first key on, each needs one
                await open_before.result()
        for wrong in (None, laptop[:-1], laptop.swapcase(), "pie_" + "0" * 43, "something else"):
            with pytest.raises(Unauthorized) as refusal:
                await knock(url, wrong)
            assert wrong is None or wrong not in str(refusal.value)
        async with httpx.AsyncClient(base_url=url) as web:
            assert [(await web.get(path)).status_code for path in ("/health", "/ready")] == [200, 200]
            shown = {"authorization": f"Bearer {laptop}"}
            own = (await web.get("/v1/statistics", headers=shown)).json()
            assert (own["tenant"], own["inferlets"], own["budgets"]) == ("default", {"terminated": 1}, {})
            for path in ("/v1/audit", "/metrics", "/v1/whatever"):
                assert (await web.get(path, headers=shown)).status_code == 403
        async with Client(url, laptop) as client:
            with pytest.raises(Forbidden, match="which needs 'upload'; it may: launch"):
                await client.upload(WAITS + b"\n", "more")
            assert (await client.statistics())["inferlets"] == {"terminated": 1}  # of its tenant
            running = await client.launch(waits)
            assert await running.receive() == "here"
            async with httpx.AsyncClient(base_url=url, headers=shown) as web:
                (held,) = (await web.get("/v1/statistics")).json()["keys"]
            assert (held["tenant"], held["inferlets"]) == ("default", 1)
            assert held["key"] in {one["key"] for one in await client.inferlets()} - {""}
            async with Client(url, laptop) as again:  # which the key counts, too
                await again.launch(waits)
                with pytest.raises(Overloaded, match="2 inferlets of this key run"):
                    await client.launch(waits)
            async with Client(url, laptop) as again:
                while await running_of(again) > 1:
                    await asyncio.sleep(0.01)
            async with serving(page) as served:
                told = await client.run(fetches, url=served.url())
                assert "allows no outgoing requests" in told
                other = await asyncio.to_thread(add, "ci", "launch,http")
                while not (await is_known(url, other)):
                    await asyncio.sleep(0.01)
                async with Client(url, other) as more:
                    assert await more.run(fetches, url=served.url()) == "a page"
            await asyncio.to_thread(keys, "revoke", "laptop")
            with pytest.raises(Unauthorized, match="this key was revoked: ask the operator"):
                await running.result()
        with pytest.raises(Unauthorized, match="this key was revoked"):
            await knock(url, laptop)

    async def page(_: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(answer(b"a page"))

    cache = cache_with_guest(tmp_path / "cache", guest_cache)
    with live_server(cache, state=state, http_allow=["127.0.0.1:*"]) as url:
        asyncio.run(asyncio.wait_for(check(url), HANG_SECONDS))
    assert "pie_" not in caplog.text
    listed = keys("list")
    assert "revoked" in listed.splitlines()[1]
    assert "pie_" not in listed


async def knock(url: str, key: str | None) -> None:
    async with Client(url, key):
        pass


async def running_of(client: Client) -> int:
    return sum(one["status"] in ("created", "running") for one in await client.inferlets())


async def is_known(url: str, key: str) -> bool:
    try:
        await knock(url, key)
    except Unauthorized:
        return False
    return True
