"""Whom a request stands for, and what happens when the file of tenants changes."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from starlette.datastructures import Headers

from pie_control.cli.commands.serve import read_tenants_at_hangup
from pie_control.client import Client
from pie_control.config import build_config, find_accounts
from pie_control.durable.database import open_database
from pie_control.durable.keys import Keys, add_key, revoke_key
from pie_control.errors import Forbidden, Unauthorized
from pie_control.http_server.callers import Callers
from pie_control.http_server.listening import bind
from pie_control.http_server.server import HttpServer
from pie_control.server_api import ServerApi
from pie_control.tenants.accounts import Accounts, read_accounts
from pie_control.tenants.budgets import Budget
from pie_control.tenants.keys import digest_of, make_key
from pie_control.tenants.tenant import Standing
from tests.control.tenants.test_accounts import ALICE, BOB, NEW, written
from tests.helpers.fake_server_api import FakeServerApi, serve_async
from tests.helpers.guard import HANG_SECONDS
from tests.helpers.sessions import exchange, open_session


def tenants(**tokens: str) -> str:
    return "\n".join(f'[tenants.{name}]\ntokens = ["{token}"]' for name, token in tokens.items())


def headers(token: str) -> Headers:
    return Headers({"authorization": f"Bearer {token}"})


def test_without_a_file_everybody_is_one_tenant_with_all_rights() -> None:
    server = cast(ServerApi, FakeServerApi())
    callers = Callers(server, None)
    found = callers.of(Headers({}))
    assert found is callers.of(headers("anything"))
    assert found.api is server
    found.check_may_load_adapters()


def test_a_tenant_is_the_same_with_all_of_its_tokens_until_the_file_changes_it(tmp_path: Path) -> None:
    text = f'[tenants.alice]\ntokens = ["{ALICE}", "{NEW}"]\n' + tenants(bob=BOB)
    callers = Callers(cast(ServerApi, FakeServerApi()), find_accounts(str(written(tmp_path, text))))
    alice, bob = callers.of(headers(ALICE)), callers.of(headers(BOB))
    assert callers.of(headers(NEW)) is alice is not bob
    assert alice.listing is not bob.listing
    with pytest.raises(Forbidden, match="tenant alice"):
        alice.check_may_load_adapters()
    callers.use(find_accounts(str(written(tmp_path, tenants(alice=NEW, carol=BOB)))))
    assert callers.of(headers(NEW)) is alice  # and keeps its blobs
    assert callers.of(headers(BOB)).account.standing.tenant.name == "carol"
    with pytest.raises(Unauthorized):
        callers.of(headers(ALICE))
    callers.use(find_accounts(str(written(tmp_path, tenants(alice=NEW) + "\nweight = 3"))))
    assert callers.of(headers(NEW)) is alice
    assert alice.account.standing.tenant.weight == alice.api.standing.tenant.weight == 3.0


def test_metrics_are_those_of_the_tenant_unless_it_sees_all(tmp_path: Path) -> None:
    path = written(tmp_path, tenants(bob=BOB, alice=ALICE) + "\nmay_see_all = true")

    async def test(url: str, runtime: FakeServerApi) -> None:
        async with httpx.AsyncClient(base_url=url) as client:
            asked = [await client.get("/metrics", headers={"authorization": f"Bearer {one}"}) for one in (BOB, ALICE)]
            assert [one.text for one in asked] == ["of bob", "of all"]

    serve_async(test, tenants=str(path))


def test_a_hangup_reads_the_file_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = written(tmp_path, tenants(alice=ALICE))
    config = build_config({"tenants": str(path)}).resolved()
    assert config.accounts is not None

    class Server:
        callers = Callers(cast(ServerApi, FakeServerApi()), config.accounts)
        use = callers.use

    async def hang_up(text: str, told: str) -> None:
        path.write_text(text)
        caplog.clear()
        os.kill(os.getpid(), signal.SIGHUP)
        async with asyncio.timeout(HANG_SECONDS):
            while told not in caplog.text:
                await asyncio.sleep(0.001)

    async def check() -> None:
        read_tenants_at_hangup(config, cast(HttpServer, cast(Any, Server())))
        try:
            await hang_up(tenants(bob=BOB), "from now on")
            assert Server.callers.of(headers(BOB)).account.standing.tenant.name == "bob"
            await hang_up("[tenants.carol]", "the tenants stay as they were")
            assert Server.callers.of(headers(BOB)).account.standing.tenant.name == "bob"
            assert BOB not in caplog.text
        finally:
            asyncio.get_running_loop().remove_signal_handler(signal.SIGHUP)

    with caplog.at_level(logging.INFO):
        asyncio.run(check())


def test_health_tells_everybody_how_it_is_and_tenants_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeServerApi, "outages", lambda _: ("worker 1: /srv/secret/model is cut off",))

    async def check(accounts: Accounts | None, seen: list[bool]) -> None:
        config = replace(build_config({}), accounts=accounts)
        server = HttpServer(cast(ServerApi, FakeServerApi()), bind("127.0.0.1", 0), config)
        await server.start()
        try:
            async with httpx.AsyncClient(base_url=server.url, trust_env=False) as http:
                answers = [
                    await http.get("/v1/health", headers=given) for given in (Headers({}), headers("x"), headers(ALICE))
                ]
        finally:
            await server.close()
        assert [one.json()["status"] for one in answers] == ["degraded"] * 3
        assert ["secret" in one.text for one in answers] == seen

    asyncio.run(check(None, [True, True, True]))
    asyncio.run(check(find_accounts(str(written(tmp_path, tenants(alice=ALICE)))), [False, False, True]))


def test_what_is_under_way_ends_when_its_token_is_removed(tmp_path: Path) -> None:
    both, one = (
        find_accounts(str(written(tmp_path, text))) for text in (tenants(alice=ALICE, bob=BOB), tenants(alice=ALICE))
    )

    async def check() -> None:
        api = FakeServerApi()
        config = replace(build_config({}), accounts=both)
        server = HttpServer(cast(ServerApi, api), bind("127.0.0.1", 0), config)
        await server.start()
        try:
            async with (
                asyncio.timeout(HANG_SECONDS),
                Client(server.url, ALICE) as alice,
                Client(server.url, BOB) as bob,
                httpx.AsyncClient(base_url=server.url, trust_env=False, headers=headers(BOB)) as http,
            ):
                stays, ends = await alice.launch("echo"), await bob.launch("echo")
                streamed = (await http.post("/v1/inferlets", json={"program": "echo"})).json()["id"]
                async with http.stream("GET", f"/v1/inferlets/{streamed}/events") as events:
                    server.use(one)
                    with pytest.raises(Unauthorized, match="no tenant of this server has this token: ask its operator"):
                        await ends.result()
                    told = bytearray()
                    with pytest.raises(httpx.RemoteProtocolError):  # it was cut
                        await read_all(events, told)
                    event, _, data = told[told.index(b"event: error") :].partition(b"\ndata: ")
                    assert json.loads(data)["error"]["type"] == "authentication_error"
                    assert bytes(event) == b"event: error"
                    assert data.endswith(b"\n\n")
                with pytest.raises(Unauthorized):
                    await bob.launch("echo")
                await stays.send("goes on")
                assert await stays.receive() == "goes on"
                of_bob = api.tenants["bob"]
                while of_bob.inferlet(ends.id).info().status == "running":
                    await asyncio.sleep(0.001)
                assert of_bob.inferlet(streamed).info().status == "running"
        finally:
            await server.close()

    asyncio.run(check())


async def read_all(answer: httpx.Response, told: bytearray) -> None:
    async for part in answer.aiter_bytes():
        told += part


def test_a_key_has_a_budget_of_its_own_and_what_it_launches_bears_its_id(tmp_path: Path) -> None:
    key, other = make_key(), make_key()
    database = open_database(tmp_path)
    record = add_key(
        database, "default", "ci", digest_of(key), key[-4:], ("launch",), None, Budget(requests_per_minute=5)
    )
    add_key(database, "default", "laptop", digest_of(other), other[-4:], ("launch", "http"), None)
    server = FakeServerApi()
    server.keys = Keys(database)
    callers = Callers(cast(ServerApi, server), None)
    assert callers.of(headers(key)) is callers.of(headers(key)) is not callers.of(headers(other))
    shown = server.tenants["default"].keys_shown
    assert [may_send for _, may_send in shown] == [False, True]
    assert shown[0] == (record.id, False)
    meter = server.meters.of(Standing(key=record.id))
    assert meter.limits(0.0)["requests"].limit == 5
    assert not server.meters.of(Standing()).limits(0.0)
    known, laptop = callers.of(headers(key)), callers.of(headers(other))
    assert callers.api_of("default", record.id) is known.api
    revoke_key(database, "ci")
    server.keys.look()
    callers.forget_keys()
    assert callers.of(headers(other)) is laptop
    assert known not in callers._known.values()
    assert callers.api_of("default", record.id) is None
    assert callers.api_of("default", "") is not None
    assert len(server.tenants["default"].keys_shown) == 2
    database.close()


def test_the_state_hears_which_tenants_there_are(tmp_path: Path) -> None:
    server = FakeServerApi()
    callers = Callers(cast(ServerApi, server), None)
    assert server.tenants_told == ["default"]
    file = tmp_path / "tenants.toml"
    file.write_text("".join(f'[tenants.{name}]\ntokens = ["{name * 9}"]\n' for name in ("bob", "alice")))
    file.chmod(0o600)
    callers.use(read_accounts(file))
    assert server.tenants_told == ["alice", "bob"]


def test_refusals_and_what_an_admin_did_are_noted(tmp_path: Path) -> None:
    async def test(url: str, runtime: FakeServerApi) -> None:
        database = open_database(tmp_path)
        keys = {}
        for name, may in (("reader", ()), ("operator", ("admin",))):
            keys[name] = make_key()
            add_key(database, "default", name, digest_of(keys[name]), keys[name][-4:], may, None)
        runtime.keys = Keys(database)
        async with httpx.AsyncClient(base_url=url) as client:
            statuses = [
                (await client.get("/v1/audit", headers={"x-api-key": key})).status_code
                for key in ("wrong", keys["reader"], keys["operator"], keys["operator"])
            ]
        assert statuses == [401, 403, 200, 200]
        found = {(one.action, one.subject): times.count for one, times in runtime.audit.take().items()}
        for api in runtime.tenants.values():
            found |= {(one.action, one.subject): times.count for one, times in api.audit.take().items()}
        assert found == {
            ("refused", "unauthorized, from 127.0.0.1"): 1,
            ("refused", "needs admin"): 1,
            ("admin", "GET /v1/audit"): 2,
        }
        database.close()

    serve_async(test)


def test_a_key_that_only_looks_asks_no_inferlet_for_its_stack(tmp_path: Path) -> None:
    """Over a session as by `POST /v1/inferlets/{inferlet}/stack`."""
    key = make_key()
    database = open_database(tmp_path)
    add_key(database, "default", "viewer", digest_of(key), key[-4:], (), None)
    server = FakeServerApi()
    server.keys = Keys(database)

    async def test(url: str, _: FakeServerApi) -> None:
        async with open_session(url, additional_headers={"authorization": f"Bearer {key}"}) as socket:
            for number, (stack, code) in enumerate([(True, "forbidden"), (False, "unknown-name")]):
                request = {"type": "inferlet", "id": number, "inferlet": "i9", "stack": stack}
                (refusal,) = await exchange(socket, request)
                assert refusal["error"]["code"] == code

    serve_async(test, server)
    database.close()
