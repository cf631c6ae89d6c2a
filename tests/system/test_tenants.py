"""Tenants of one server, told apart by their tokens: what each can do, and that others' things do not exist for it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from pie_control.cli.main import main
from pie_control.client import Client, InferletEnded, SyncClient
from pie_control.errors import Forbidden, Overloaded, Unauthorized, UnknownName
from pie_control.http_server.listening import bind
from pie_control.http_server.server import HttpServer
from pie_control.inferlets.manager import PAUSED
from pie_control.tenants.accounts import read_accounts
from pie_control.testing.fake_model import FakeModel
from pie_control.testing.in_process import InProcessClient
from tests.control.tenants.test_accounts import ALICE, BOB, written
from tests.helpers.guard import HANG_SECONDS
from tests.helpers.live_server import live_server
from tests.helpers.servers import cache_with_guest, started
from tests.helpers.tree import EXAMPLES
from tests.helpers.web import Asked, answer, serving

TENANTS = f"""
[tenants.alice]
tokens = ["{ALICE}"]
http_allow = ["127.0.0.1:*"]
may_load_adapters = true

[tenants.bob]
tokens = ["{BOB}"]
max_inferlets = 3
http_allow = ["api.example.com"]
"""
WAITS = b"async def main(args):\n    await args.send('here')\n    return await args.receive()\n"
FETCHES = b"""
from inferlet_sdk import http_get

async def main(args, url=""):
    return await (await http_get(url)).text()
"""
WHO = b"from inferlet_sdk import traits\n\ndef main(args):\n    return traits.get_env()['user']\n"
EXPORTS = b"""
from inferlet_sdk import NotFound, traits

async def main(args, name="", make=False):
    queue = traits.create_queue(args.model)
    if make:
        pages, embeds = traits.alloc_kvpage(queue, 1), traits.alloc_emb(queue, 4)
        traits.embed_txt(queue, [97, 98, 99, 100], range(4), embeds)
        traits.forward(queue, pages, embeds, pages)
        await traits.export_kvpage(queue, name, pages, [97, 98, 99, 100])
        return "made"
    try:
        await traits.import_kvpage(queue, name)
    except NotFound:
        return [None, len(await traits.list_exports(queue))]
    return ["found", len(await traits.list_exports(queue))]
"""
HEARS = b"""
import asyncio
from inferlet_sdk import subscribe

async def main(args):
    async with asyncio.timeout(200):
        messages = subscribe("news")
        await args.send("ready")
        return (await anext(aiter(messages))).text
"""
COMPUTES = b"""
import asyncio

async def main(args):
    told = asyncio.ensure_future(args.receive())
    while not told.done():
        sum(range(20_000))
        await asyncio.sleep(0)
    return "done"
"""
SAYS = b"""
from inferlet_sdk import broadcast

async def main(args, text=""):
    return await broadcast("news", text)
"""


@pytest.fixture(scope="module", params=[0, 2], ids=["hosts 0", "hosts 2"])
def url(request: pytest.FixtureRequest, guest_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    cache = cache_with_guest(tmp_path_factory.mktemp("cache"), guest_cache)
    tenants = written(tmp_path_factory.mktemp("settings"), TENANTS)
    with live_server(cache, hosts=request.param, tenants=str(tenants)) as url:
        yield url


@asynccontextmanager
async def both(url: str) -> AsyncIterator[tuple[Client, Client]]:
    async with asyncio.timeout(HANG_SECONDS), Client(url, ALICE) as alice, Client(url, BOB) as bob:
        yield alice, bob


async def result(client: Client, program: bytes, **kwargs: Any) -> Any:
    environment = {"kwargs": json.dumps(kwargs)} if kwargs else {}
    return await (await client.launch(await client.upload(program), environment=environment)).result()


# ---- tokens ----------------------------------------------------------------------------------------------------------


def test_without_a_token_of_a_tenant_there_is_nothing_but_health_and_the_description(url: str) -> None:
    with httpx.Client(base_url=url, trust_env=False) as http:
        for path in ("/v1/health", "/docs", "/openapi.json"):
            assert http.get(path).status_code == 200
        for headers, message in (
            ({}, "asks for a token"),
            ({"authorization": "Basic YTpi"}, "asks for a token"),
            ({"authorization": "Bearer wrong"}, "no tenant of this server has this token"),
            ({"authorization": f"Bearer {ALICE}x"}, "no tenant of this server has this token"),
        ):
            for path in ("programs", "inferlets", "inferlets/i1/events", "models", "statistics", "adapters", "nothing"):
                refused = http.get(f"/v1/{path}", headers=headers)
                assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
                assert refused.json()["error"]["code"] == "unauthorized"
                assert message in refused.json()["error"]["message"]
            for path in ("programs", "blobs", "inferlets", "adapters"):
                assert http.post(f"/v1/{path}", content=b"x", headers=headers).status_code == 401
        for scheme in ("Bearer", "bearer", "BEARER"):
            assert http.get("/v1/models", headers={"authorization": f"{scheme} {ALICE}"}).status_code == 200
        schemes = http.get("/openapi.json").json()["components"]["securitySchemes"]
        assert schemes["HTTPBearer"]["scheme"] == "bearer"


def test_clients_and_commands_show_a_token(
    url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for wrong in (None, "", "wrong"):
        with pytest.raises(Unauthorized, match=r"token.*PIE_TOKEN"):
            asyncio.run(Client(url, wrong).connect())
    with SyncClient(url, ALICE) as client:
        assert client.models()
    assert main(["list", "--server", url]) == 2
    assert "asks for a token" in capsys.readouterr().err
    assert main(["list", "--server", url, "--token", "wrong"]) == 2
    assert "no tenant of this server has this token" in capsys.readouterr().err
    assert main(["models", "--server", url, "--token", BOB]) == 0
    monkeypatch.setenv("PIE_TOKEN", ALICE)
    monkeypatch.setenv("PIE_SERVER", url)
    for command in (["list"], ["programs"], ["models"], ["adapters"], ["run", "hello"]):
        assert main(command) == 0
    capsys.readouterr()
    assert main(["launch", "hello"]) == 0
    inferlet = capsys.readouterr().out.strip()
    assert main(["logs", "-f", inferlet]) == 0
    assert main(["stop", inferlet]) == 0
    assert main(["upload", str(EXAMPLES / "hello" / "hello.py")]) == 0
    assert main(["delete", "hello"]) == 0


# ---- what belongs to a tenant ----------------------------------------------------------------------------------------


def test_programs_names_and_blobs_of_another_tenant_do_not_exist(url: str) -> None:
    async def check() -> None:
        async with both(url) as (alice, bob):
            own = WAITS + b"# of alice\n"  # bob keeps the other, if that test came before
            mine = await alice.upload(own, "shared name")
            for reference in (mine, mine[:12], "shared name"):
                with pytest.raises(UnknownName):
                    await bob.launch(reference)
                with pytest.raises(UnknownName):
                    await bob.remove_program(reference)
            assert mine not in {each["program"] for each in await bob.programs()}
            others = await bob.upload(WHO, "shared name")
            found = {each["name"]: each["program"] for each in await alice.programs()}
            assert found["shared name"] == mine
            await bob.remove_program("shared name")
            assert others not in {each["program"] for each in await bob.programs()}
            digest = "61c1d1e0d7c0e9ee"  # no blob at all is refused in the same words as another's
            async with httpx.AsyncClient(base_url=url, trust_env=False, headers=bearer(BOB)) as http:
                for blob in (await alice.upload_blob(b"alice's cat"), digest):
                    await bob.upload(WAITS, "waits")
                    body = {"program": "waits", "blobs": {"cat": blob}}
                    refused = (await http.post("/v1/inferlets", json=body)).json()["error"]
                    assert refused["message"].startswith(f"no blob {blob!r}: upload it again")

    asyncio.run(check())


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def test_inferlets_of_another_tenant_do_not_exist(url: str) -> None:
    async def check() -> None:
        async with both(url) as (alice, bob):
            running = await alice.launch(await alice.upload(WAITS, "waits"))
            assert await running.receive() == "here"
            for refused in (
                bob.inferlet(running.id),
                bob.logs(running.id),
                bob.terminate(running.id),
                bob.attach(running.id),
            ):
                with pytest.raises(UnknownName, match="never existed, or ended long ago"):
                    await refused
            assert running.id not in {each["id"] for each in await bob.inferlets()}
            assert running.id in {each["id"] for each in await alice.inferlets()}
            async with httpx.AsyncClient(base_url=url, trust_env=False, headers=bearer(BOB)) as http:
                path = f"/v1/inferlets/{running.id}"
                answers = (
                    await http.get(path),
                    await http.get(f"{path}/logs"),
                    await http.get(f"{path}/events"),
                    await http.delete(path),
                    await http.post(f"{path}/messages", json={"text": "from bob"}),
                )
                assert [one.status_code for one in answers] == [404] * 5
                assert running.id not in (await http.get("/v1/inferlets")).text
            await running.send("from alice")
            assert await running.result() == "from alice"

    asyncio.run(check())


def test_exports_and_topics_are_the_tenants(url: str) -> None:
    async def check() -> None:
        async with both(url) as (alice, bob):
            assert await result(alice, EXPORTS, name="prefix", make=True) == "made"
            assert await result(alice, EXPORTS, name="prefix") == ["found", 1]
            assert await result(bob, EXPORTS, name="prefix") == [None, 0]
            hearers = [await each.launch(await each.upload(HEARS)) for each in (alice, bob)]
            for each in hearers:
                assert await each.receive() == "ready"
            assert await result(bob, SAYS, text="bob's") == 1
            assert await result(alice, SAYS, text="alice's") == 1
            assert [await each.result() for each in hearers] == ["alice's", "bob's"]

    asyncio.run(check())


def test_the_user_is_the_tenant_whatever_the_client_says(url: str) -> None:
    async def check() -> None:
        async with both(url) as (alice, bob):
            for client, name in ((alice, "alice"), (bob, "bob")):
                program = await client.upload(WHO)
                running = await client.launch(program, environment={"user": "operator"})
                assert await running.result() == name

    asyncio.run(check())


# ---- what the operator allows ----------------------------------------------------------------------------------------


async def greet(asked: Asked, writer: asyncio.StreamWriter) -> None:
    writer.write(answer(b"hello"))


def test_http_is_allowed_by_tenant(url: str) -> None:
    async def check() -> None:
        async with both(url) as (alice, bob), serving(greet) as web:
            assert await result(alice, FETCHES, url=web.url()) == "hello"
            with pytest.raises(InferletEnded, match=r"http_allow = .* of tenant bob"):
                await result(bob, FETCHES, url=web.url())

    asyncio.run(check())


def test_inferlets_of_a_tenant_are_bounded_and_come_back(url: str) -> None:
    async def check() -> None:
        async with both(url) as (alice, bob):
            program = await bob.upload(WAITS)
            for _ in range(2):  # each end makes room
                running = [await bob.launch(program) for _ in range(3)]
                with pytest.raises(Overloaded, match="3 inferlets of tenant bob run, which is the limit"):
                    await bob.launch(program)
                others = [await alice.launch(await alice.upload(WAITS)) for _ in range(4)]
                for each in (*running, *others):
                    await each.send("end")
                assert [await each.result() for each in (*running, *others)] == ["end"] * 7

    asyncio.run(check())


def test_adapters_are_loaded_by_whom_the_operator_allows(url: str) -> None:
    async def check() -> None:
        async with both(url) as (alice, bob):
            for refused in (bob.load_adapter("a", "b"), bob.drop_adapter("a")):
                with pytest.raises(Forbidden, match="tenant bob may not load or drop adapters"):
                    await refused
            with pytest.raises(Forbidden, match="--adapter-dir"):
                await alice.load_adapter("a", "b")
            assert await bob.adapters() == []

    asyncio.run(check())


PARENT = b"""
from inferlet_sdk import launch

async def main(args):
    await args.send("ready")
    await args.receive()
    try:
        return await launch("waits").result()
    except Exception as error:
        return str(error)
"""


def test_who_may_see_all_tenants_lists_and_watches_their_inferlets(
    guest_cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cache = cache_with_guest(tmp_path, guest_cache)
    tenants = written(tmp_path, TENANTS.replace("may_load_adapters", "may_see_all"))
    with live_server(cache, tenants=str(tenants)) as url:
        with SyncClient(url, BOB) as bob, SyncClient(url, ALICE) as alice:
            bob.launch(bob.upload(WHO), detached=True).result()
            running = bob.launch(bob.upload(WAITS, "of bob"), detached=True)
            assert running.receive() == "here"
            own = {one["id"]: one for one in bob.inferlets()}
            assert [one["result"] for one in own.values() if one["ended"]] == ['"bob"']
            seen = alice.inferlets(of_all=True)
            assert {one["id"]: one["tenant"] for one in seen} == dict.fromkeys(own, "bob")
            assert not any(one["result"] or one["error"] for one in seen)
            assert alice.inferlets() == []
            with pytest.raises(Forbidden, match="may_see_all"):
                bob.inferlets(of_all=True)
        with httpx.Client(base_url=url, trust_env=False) as http:
            asked = [
                http.get("/v1/inferlets?of_all=true", headers={"authorization": f"Bearer {one}"})
                for one in (ALICE, BOB)
            ]
            assert [one.status_code for one in asked] == [200, 403]
            assert {one["id"] for one in asked[0].json()} == set(own)
        for token in (ALICE, BOB):
            assert main(["top", "--once", "--seconds", "0.1", "--server", url, "--token", token]) == 0
            assert "of bob" in capsys.readouterr().out


def test_what_runs_beyond_its_processor_time_waits_and_goes_on_with_a_larger_budget(
    guest_cache: Path, tmp_path: Path
) -> None:
    async def check() -> None:
        cache = cache_with_guest(tmp_path, guest_cache)
        least = TENANTS.replace("max_inferlets = 3", "cpu_seconds_per_hour = 1")
        accounts = str(written(tmp_path, least))
        async with started(cache, InProcessClient(FakeModel()), tenants=accounts, idle_seconds=1.0) as api:
            server = HttpServer(api, bind("127.0.0.1", 0), api.config)
            await server.start()
            try:
                async with both(server.url) as (alice, bob):
                    running = await bob.launch(await bob.upload(COMPUTES))
                    while (await bob.inferlet(running.id))["waits_for"] != PAUSED:
                        await asyncio.sleep(0.05)
                    other = await bob.launch(await bob.upload(WHO))
                    assert await result(alice, WHO) == "alice"
                    waiting = await bob.inferlet(other.id)
                    assert (waiting["status"], waiting["waits_for"]) == ("created", PAUSED)
                    await asyncio.sleep(2.5)  # it is not idle
                    assert (await bob.inferlet(running.id))["status"] == "running"
                    server.use(read_accounts(written(tmp_path, TENANTS)))
                    await running.send("enough")
                    assert (await running.result(), await other.result()) == ("done", "bob")
            finally:
                await server.close()

    asyncio.run(asyncio.wait_for(check(), HANG_SECONDS))


def test_a_reload_reaches_sessions_that_are_open_and_inferlets_that_run(guest_cache: Path, tmp_path: Path) -> None:
    async def check() -> None:
        cache = cache_with_guest(tmp_path, guest_cache)
        async with started(cache, InProcessClient(FakeModel()), tenants=str(written(tmp_path, TENANTS))) as api:
            server = HttpServer(api, bind("127.0.0.1", 0), api.config)
            await server.start()
            try:
                async with both(server.url) as (alice, bob):
                    await bob.upload(WAITS, "waits")
                    parent = await bob.launch(await bob.upload(PARENT))
                    await parent.receive()
                    less = TENANTS.replace("max_inferlets = 3", "max_inferlets = 1").replace("= true", "= false")
                    server.use(read_accounts(written(tmp_path, less)))
                    with pytest.raises(Overloaded, match="1 inferlets of tenant bob run, which is the limit"):
                        await bob.launch("waits")
                    await parent.send("launch")
                    assert "1 inferlets of tenant bob run, which is the limit" in await parent.result()
                    await (await bob.launch("waits")).terminate()  # it goes on with what is left
                    with pytest.raises(Forbidden, match="tenant alice may not load or drop adapters"):
                        await alice.load_adapter("a", "b")
            finally:
                await server.close()

    asyncio.run(check())
