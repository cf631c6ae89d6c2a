"""`--log-format json`: what a line says, and whose request and tenant it names."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from pie_control.config import find_accounts
from pie_control.http_server.listening import bind
from pie_control.http_server.server import HttpServer
from pie_control.observation.logs import REQUEST, JsonFormatter
from pie_control.testing.fake_model import FakeModel
from pie_control.testing.in_process import InProcessClient
from tests.helpers.guard import HANG_SECONDS
from tests.helpers.servers import started

TOKEN = "secret-of-alice-1234567890"
PARENT = """
from inferlet_sdk import launch

async def main(args, is_child=False):
    if is_child:
        return "a child"
    return await launch(is_child=True).result()
"""


def test_a_line_is_an_object_with_its_request() -> None:
    record = logging.makeLogRecord({"name": "pie", "levelname": "WARNING", "msg": "%s\n\x1b[31m", "args": ("so",)})
    record.about = {"inferlet": "i7"}
    context = REQUEST.set("r1")
    try:
        line = JsonFormatter().format(record)
    finally:
        REQUEST.reset(context)
    assert line.isprintable()
    found = json.loads(line)
    assert found.pop("time").endswith("+00:00")
    assert found == {
        "level": "warning",
        "logger": "pie",
        "message": "so\n\x1b[31m",
        "request": "r1",
        "inferlet": "i7",
    }


def test_an_error_keeps_its_traceback() -> None:
    try:
        raise ValueError("no")
    except ValueError:
        record = logging.makeLogRecord({"msg": "it failed", "exc_info": sys.exc_info()})
    assert "ValueError: no" in json.loads(JsonFormatter().format(record))["traceback"]


def test_requests_and_inferlets_have_lines(guest_cache: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tenants = tmp_path / "tenants.toml"
    tenants.touch(mode=0o600)
    tenants.write_text(f'[tenants.alice]\ntokens = ["{TOKEN}"]\n')
    assert find_accounts(str(tenants))
    caplog.set_level(logging.INFO)

    async def test() -> None:
        settings = {"log_format": "json", "tenants": str(tenants)}
        async with started(guest_cache, InProcessClient(FakeModel()), **settings) as api:
            server = HttpServer(api, bind("127.0.0.1", 0), api.config)
            await server.start()
            headers = {"authorization": f"Bearer {TOKEN}", "x-request-id": "request-7"}
            async with httpx.AsyncClient(base_url=server.url, headers=headers, timeout=HANG_SECONDS) as client:
                uploaded = await client.post("/v1/programs", params={"name": "parent"}, content=PARENT.encode())
                assert uploaded.headers["x-request-id"] == "request-7"
                ran = await client.post("/v1/inferlets", params={"stream": "true"}, json={"program": "parent"})
                assert "a child" in ran.text
                refused = await client.get("/v1/models", headers={"authorization": "", "x-request-id": "no\tid"})
                assert refused.headers["x-request-id"] != "no\tid"
            await server.close()

    asyncio.run(test())
    lines = [json.loads(JsonFormatter().format(record)) for record in caplog.records]
    assert TOKEN not in str(lines)
    requests = [line for line in lines if line["logger"] == "pie.requests"]
    assert [(line["path"], line["status"], line["tenant"]) for line in requests] == [
        ("/v1/programs", 200, "alice"),
        ("/v1/inferlets", 201, "alice"),
        ("/v1/models", 401, None),
    ]
    inferlets = [line for line in lines if line["logger"] == "pie.inferlets"]
    assert {(line["request"], line["tenant"]) for line in inferlets} == {("request-7", "alice")}
    first, second = inferlets[0]["inferlet"], inferlets[1]["inferlet"]

    def told(line: dict[str, Any]) -> tuple[Any, ...]:
        return line["message"].partition(" ")[0], line["inferlet"], line.get("parent"), line.get("status")

    assert [told(line) for line in inferlets] == [
        ("launched", first, None, None),
        ("launched", second, first, None),
        ("ended", second, first, "finished"),
        ("ended", first, None, "finished"),
    ]
