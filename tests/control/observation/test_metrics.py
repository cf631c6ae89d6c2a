"""`/metrics` of a whole server: what a program did, and the names by which dashboards of others look for it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample
from starlette.types import Receive, Scope, Send

from pie_control.http_server.listening import bind
from pie_control.http_server.metrics.measured import MeasuredRequests
from pie_control.http_server.server import HttpServer
from pie_control.observation.http_requests import HttpRequests
from pie_control.observation.observer import Observer
from pie_control.observation.prometheus.exposition import exposition
from pie_control.registry.registry import Registry, RegistryStatistics
from pie_control.tenants.budgets import Budget
from pie_control.tenants.meters import Meters
from pie_control.testing.fake_model import FakeModel
from pie_control.testing.in_process import InProcessClient
from tests.helpers.servers import run, started
from tests.helpers.tree import ROOT

QUERIED = Path(__file__).with_name("vllm_overview.json")
"""What vLLM's overview dashboard for Grafana queries, with the values of labels that it looks for, and two names that
autoscalers and other dashboards read. `up` is Prometheus's
own; caches of other servers and of images are left out, as the dashboard has no such lines where there are none."""

OURS = ROOT / "docs" / "grafana.json"

PROGRAM = """
from inferlet_sdk import Context, IgnoreStopTokens

async def main(args):
    text = await Context(args.model).fill("hello there").generate_until(max_tokens=6, stop=IgnoreStopTokens())
    return len(text) > 0
"""

Families = dict[str, list[Sample]]


def read(text: str) -> tuple[Families, dict[str, str]]:
    families = list(text_string_to_metric_families(text))
    return {one.name: one.samples for one in families}, {one.name: one.type for one in families}


def value(families: Families, name: str, sample: str = "", **labels: str) -> float:
    """The only sample of this family with these labels."""
    found = [
        one.value
        for one in families[name]
        if labels.items() <= one.labels.items() and (not sample or one.name == name + sample)
    ]
    (only,) = found
    return only


async def scraped(cache: Path, **settings: object) -> tuple[httpx.Response, str]:
    """The answer of `/metrics` behind a program that has run, and the id of its inferlet."""
    async with started(cache, InProcessClient(FakeModel()), **settings) as api:
        api.meters.use({"default": Budget(requests_per_minute=60, tokens_per_day=1000)})
        server = HttpServer(api, bind("127.0.0.1", 0), api.config)
        await server.start()
        try:
            result = await run(api, PROGRAM)
            assert result is True
            async with httpx.AsyncClient(base_url=server.url) as client:
                await client.get("/v1/models")
                await client.get("/no/such/path")
                return await client.get("/metrics"), api.inferlets()[0].id
        finally:
            await server.close()


@pytest.mark.parametrize(("way", "status"), [("answered", "2xx"), ("left", "4xx"), ("broken", "5xx"), ("cut", "2xx")])
def test_a_client_that_leaves_is_no_failure_of_the_server(way: str, status: str) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if way in ("answered", "cut"):
            await send({"type": "http.response.start", "status": 200})
        if way in ("broken", "cut"):
            raise ValueError(way)

    async def nothing(*_: object) -> Any:
        pass

    requests = HttpRequests()
    scope = {"type": "http", "path": "/v1/models", "method": "GET"}
    with contextlib.suppress(ValueError):
        asyncio.run(MeasuredRequests(app, requests)(scope, nothing, nothing))
    assert requests.answered == {("none", "GET", status): 1}


def test_samples_of_other_tenants_are_left_out() -> None:
    meters = Meters()
    meters.use({name: Budget(requests_per_minute=60) for name in ("alice", "bob")})
    counts = RegistryStatistics(3, 3, {}, 0, {"alice": 1, "bob": 2})
    observer = Observer(cast(Registry, SimpleNamespace(on_end=[])))
    of_bob, of_all = [
        read(exposition(observer, counts, (), {}, meters.budgets, 0.0, one).decode())[0] for one in ("bob", None)
    ]
    assert {one.labels["tenant"] for one in of_bob["pie_budget"]} == {"bob"}
    assert [one.labels for one in of_bob["pie_tenant_inferlets"]] == [{"tenant": "bob"}]
    assert len(of_all["pie_tenant_inferlets"]) == 2
    assert value(of_bob, "pie_launches") == 3


def test_what_a_program_did_is_told(guest_cache: Path) -> None:
    answer, inferlet = asyncio.run(scraped(guest_cache, metrics=True))
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain")
    families, types = read(answer.text)
    model = {"model": "fake"}
    assert value(families, "pie_launches") == value(families, "pie_inferlets_ended", status="finished") == 1
    assert value(families, "pie_tokens", tenant="default", kind="generated", **model) == 6
    prompt = value(families, "pie_tokens", tenant="default", kind="prompt", **model)
    assert prompt > 0
    assert value(families, "pie_budget", tenant="default", of="tokens a day") == 1000
    assert value(families, "pie_budget_left", tenant="default", of="tokens a day") == 1000 - prompt - 6
    assert value(families, "pie_budget_left", tenant="default", of="requests a minute") == 59
    assert value(families, "pie_budget_refused", tenant="default") == 0
    assert value(families, "pie_served_requests", state="waiting") == 0
    assert value(families, "pie_queues_waiting", **{"for": "budget"}, **model) == 0
    assert value(families, "pie_first_token_seconds", "_count", **model) == 1
    assert value(families, "pie_between_tokens_seconds", "_count", **model) == 5
    assert value(families, "pie_waves", worker="1", **model) > 0
    assert value(families, "pie_host_up", host="0") == value(families, "pie_worker_up", worker="1", **model) == 1
    assert value(families, "vllm:request_success", model_name="fake", finished_reason="stop") == 1
    assert value(families, "vllm:generation_tokens", model_name="fake") == 6
    assert value(families, "vllm:request_generation_tokens", "_sum", model_name="fake") == 6
    assert value(families, "http_requests", handler="/v1/models", method="GET", status="2xx") == 1
    assert value(families, "http_requests", handler="none", method="GET", status="4xx") == 1
    queried = json.loads(QUERIED.read_text())
    assert {name: one["type"] for name, one in queried.items()} == {name: types.get(name) for name in queried}
    for name, one in queried.items():
        for label, wanted in one.get("labels", {}).items():
            seen = {sample.labels[label] for sample in families[name] if label in sample.labels}
            assert seen >= set(wanted), (name, label)
            assert seen, (name, label)
    known = {sample.name for samples in families.values() for sample in samples}
    queries = [target["expr"] for panel in json.loads(OURS.read_text())["panels"] for target in panel["targets"]]
    assert {name for query in queries for name in re.findall(r"\b(?:pie|http)_\w+", query)} <= known
    labels = {given for samples in families.values() for sample in samples for given in sample.labels.values()}
    assert inferlet not in labels


def test_without_the_setting_nothing_is_measured(guest_cache: Path) -> None:
    answer, _ = asyncio.run(scraped(guest_cache))
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "unknown-name")
    assert "--metrics" in answer.json()["error"]["message"]
