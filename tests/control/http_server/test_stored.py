"""Stored answers over HTTP: they go on without their clients, who come back and read from where they were."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import replace
from typing import Any

import httpx
import pytest

from pie_control.durable.responses import AtOnce, ResponseRecord, Responses
from pie_control.gateway.refusal import Refused
from pie_control.gateway.request import ServedRequest
from pie_control.gateway.stored.store import MOST_TRIES, StoredAnswers
from tests.control.http_server.test_http_server import ended, http
from tests.helpers.fake_server_api import FakeServerApi, serve_async, serving
from tests.helpers.garbage import without_collections
from tests.helpers.guard import HANG_SECONDS

PATH = "/v1/responses"


async def begun(client: httpx.AsyncClient, id: str, **fields: Any) -> asyncio.Task[httpx.Response]:
    """A request whose answer is stored by now."""
    body = {"model": "+store", **fields}
    request = asyncio.create_task(client.post(PATH, json=body, headers={"x-request-id": id}))
    while (await client.get(f"{PATH}/{id}")).status_code == 404:
        await asyncio.sleep(0.005)
    return request


def numbers(answer: httpx.Response) -> list[tuple[str, str]]:
    """Number and name of each event."""
    events = [event.split("\n") for event in answer.text.strip().split("\n\n") if event]
    return [(lines[0].removeprefix("id: "), lines[1].removeprefix("event: ")) for lines in events]


def test_a_stream_goes_on_without_its_client_and_is_read_from_where_it_was() -> None:
    async def test(url: str, runtime: FakeServerApi) -> None:
        async with http(url) as client:
            request = await begun(client, "one", stream=True)
            inferlet = runtime.inferlet("i1")
            inferlet.send("first")
            async with client.stream("GET", f"{PATH}/one?stream=true") as late:
                lines = late.aiter_lines()
                assert [await anext(lines) for _ in range(2)] == ["id: 0", "event: first"]
                request.cancel()
                await asyncio.wait([request])
                for text in ("second", "response.completed", "end"):
                    inferlet.send(text)
                names = [line async for line in lines if line.startswith("event")]
                assert names == ["event: second", "event: response.completed"]
            assert await ended(runtime, "i1") == "finished"
            whole = await client.get(f"{PATH}/one")
            assert whole.json() == {"status": "completed"}
            events = numbers(await client.get(f"{PATH}/one?stream=true"))
            assert [number for number, _ in events] == [str(place) for place in range(len(events))]
            rest = await client.get(f"{PATH}/one?stream=true", headers={"last-event-id": "0"})
            assert numbers(rest) == events[1:]
            for wrong in ({"last-event-id": str(len(events))}, {"last-event-id": "x"}):
                refused = await client.get(f"{PATH}/one?stream=true", headers=wrong)
                assert (refused.status_code, refused.json()["error"]["param"]) == (400, "starting_after")
            over = await client.get(f"{PATH}/one?stream=true&starting_after={len(events) - 1}")
            assert (over.status_code, over.text) == (200, "")

    serve_async(test)


def test_a_response_is_stored_when_its_stream_says_so() -> None:
    async def test(url: str, runtime: FakeServerApi) -> None:
        async with http(url) as client:
            request = await begun(client, "one", stream=True)
            runtime.inferlet("i1").send("first")
            async with client.stream("GET", f"{PATH}/one?stream=true") as reader:
                lines = reader.aiter_lines()
                while await anext(lines):
                    pass
                runtime.inferlet("i1").send("response.completed")
                last = asyncio.ensure_future(anext(lines))
                for _ in range(20):
                    assert (await client.get(f"{PATH}/one")).json()["status"] == "in_progress"
                assert not last.done()
                runtime.inferlet("i1").send("end")
                assert [await last, await anext(lines)] == ["id: 1", "event: response.completed"]
                assert (await client.get(f"{PATH}/one")).json()["status"] == "completed"
            await request

    serve_async(test)


def test_the_background_is_asked_cancelled_and_deleted() -> None:
    async def test(url: str, runtime: FakeServerApi) -> None:
        async with http(url) as client:
            for number, way in enumerate(("cancel", "delete"), start=1):
                request = await begun(client, f"background-{way}")
                assert (await request).json() == {"status": "in_progress"}
                path = f"{PATH}/background-{way}"
                if way == "cancel":
                    for _ in range(2):
                        answer = await client.post(f"{path}/cancel")
                        assert answer.json() == {"status": "cancelled", "error": None}
                    refused = await client.get(f"{path}?stream=true")
                    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "stream")
                assert (await client.delete(path)).json()["deleted"] is True
                assert runtime.inferlet(f"i{number}").status == "terminated"
                for method in (client.get, client.delete):
                    assert (await method(path)).json()["error"]["code"] == "response_not_found"

    serve_async(test)


@pytest.mark.parametrize(("way", "status", "code"), [("fail", 500, "server_error"), ("refuse", 422, "too_many")])
@pytest.mark.parametrize("stream", [False, True])
def test_what_fails_is_stored_as_failed(way: str, status: int, code: str, stream: bool) -> None:
    async def test(url: str, runtime: FakeServerApi) -> None:
        async with http(url) as client:
            request = await begun(client, "one", stream=stream)
            again = await client.post(PATH, json={"model": "+store"}, headers={"x-request-id": "one"})
            assert (again.status_code, again.json()["error"]["code"]) == (409, "conflict")
            runtime.inferlet("i1").send(way)
            assert (await request).status_code == status
            found = (await client.get(f"{PATH}/one")).json()
            assert (found["status"], found["error"]["code"]) == ("failed", code)
            assert (await client.post(f"{PATH}/one/cancel")).status_code == 400  # not of the background

    serve_async(test)


def test_items_come_in_pages() -> None:
    async def test(url: str, runtime: FakeServerApi) -> None:
        async with http(url) as client:
            await (await begun(client, "background"))
            path = f"{PATH}/background/input_items"
            page = {"object": "list", "data": [{"id": "a"}], "first_id": "a", "last_id": "a", "has_more": False}
            assert (await client.get(path)).json() == page
            assert (await client.get(f"{path}?after=a")).json()["data"] == []
            for wrong in ("after=b", "limit=0", "order=up"):
                assert (await client.get(f"{path}?{wrong}")).status_code == 400
            assert (await client.get(f"{PATH}/other/input_items")).status_code == 404

    serve_async(test)


def test_readers_of_a_stored_answer_share_it() -> None:
    """It may have 64 MiB, and each of them be slow."""
    stored = AtOnce.responses(1.0, 1 << 20)
    told = ("", b"", "[]", "{}", ("a",))
    stored.put(ResponseRecord("default", "r1", "i1", PATH, "1", 1.0, time.time(), False, True, *told), lambda: None)

    async def test() -> None:
        answers = StoredAnswers(stored)
        first, second = answers.find("default", "r1"), answers.find("default", "r1")
        assert first is second
        await answers.delete("default", "r1", lambda _: None)
        with pytest.raises(Refused, match="not found"):
            answers.find("default", "r1")
        assert await first.after(0) == ["a"], "who reads it goes on"

    asyncio.run(asyncio.wait_for(test(), HANG_SECONDS))


def test_stored_answers_are_read_beside_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    find = Responses.find_kept

    async def test(url: str, runtime: FakeServerApi) -> None:
        loop = asyncio.get_running_loop()

        def find_later(self: Responses, tenant: str, id: str) -> ResponseRecord | None:
            had_turn = threading.Event()
            loop.call_soon_threadsafe(had_turn.set)
            assert had_turn.wait(HANG_SECONDS)
            return find(self, tenant, id)

        async with http(url) as client:
            await (await begun(client, "background"))
            await client.post(f"{PATH}/background/cancel")
            monkeypatch.setattr(Responses, "find_kept", find_later)
            for path in ("", "/input_items"):
                assert (await client.get(f"{PATH}/background{path}")).status_code == 200
            assert (await client.post(f"{PATH}/background/cancel")).status_code == 200
            assert (await client.delete(f"{PATH}/background")).status_code == 200

    serve_async(test)


def test_the_background_begins_again_after_a_restart_and_the_rest_has_failed() -> None:
    def left(
        id: str, background: bool, model: str = "+store", body: str = '{"status": "in_progress"}'
    ) -> ResponseRecord:
        request = b'{"model": "%s"}' % model.encode()
        told = ("", request, "[]", body, ())
        return ResponseRecord("default", id, "i9", PATH, id, 1.0, None, background, False, *told)

    odd = left("unread", False, body='{"a": 1e999}'), left("no-request", True, '"')  # as older servers took them

    async def test() -> None:
        api = FakeServerApi()
        for one in (left("background", True), left("rest", False), left("background-gone", True, "+nothing"), *odd):
            api.responses.put(one, lambda: None)
        async with serving(api) as url, http(url) as client:
            for id in ("rest", "unread"):
                assert (await client.get(f"{PATH}/{id}")).json()["status"] == "failed"
            while not api.inferlets():
                await asyncio.sleep(0.005)
            assert (await client.get(f"{PATH}/background")).json()["status"] == "in_progress"
            api.inferlet("i1").send("end")
            assert await ended(api, "i1") == "finished"
            for id, status in (("background", "completed"), ("background-gone", "failed"), ("no-request", "failed")):
                while (found := (await client.get(f"{PATH}/{id}")).json()["status"]) == "in_progress":
                    await asyncio.sleep(0.005)
                assert found == status

    asyncio.run(asyncio.wait_for(test(), HANG_SECONDS))


def begun_before(id: str) -> ResponseRecord:
    """What a server was making in the background that was killed."""
    told = ("", b'{"model": "+store"}', "[]", '{"status": "in_progress"}', ())
    return ResponseRecord("default", id, "i9", PATH, id, 1.0, None, True, False, *told)


def test_what_is_given_up_before_it_begins_again_is_not_made() -> None:
    async def test() -> None:
        api = FakeServerApi()
        for id in ("first", "cancelled", "deleted"):
            api.responses.put(begun_before(id), lambda: None)
        api.responses.put(replace(begun_before("killing"), created=0.5, tries=MOST_TRIES), lambda: None)
        async with serving(api, max_serving=1) as url, http(url) as client:
            killing = (await client.get(f"{PATH}/killing")).json()
            assert killing["status"] == "failed"
            assert "killed 4 times while it made this answer" in killing["error"]["message"]
            assert (await client.post(f"{PATH}/cancelled/cancel")).json()["status"] == "cancelled"
            assert (await client.delete(f"{PATH}/deleted")).json()["deleted"]
            while not api.inferlets():
                await asyncio.sleep(0.005)
            api.inferlet("i1").send("end")
            assert await ended(api, "i1") == "finished"
            answer = await client.post("/v1/chat/completions", json={"model": "+hello"})  # behind all that waited
            assert answer.status_code == 200
            assert len(api.inferlets()) == 2
            assert (await client.get(f"{PATH}/cancelled")).json()["status"] == "cancelled"
            assert (await client.get(f"{PATH}/deleted")).status_code == 404

    asyncio.run(asyncio.wait_for(test(), HANG_SECONDS))


def test_what_begins_again_waits_until_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long that takes: its client was told that it is made, and may have gone. What was asked is read then:
    that of all together may be more than the memory has."""
    request_of, read = Responses.request_of, list[str]()

    def read_request(self: Responses, tenant: str, id: str) -> bytes:
        read.append(id)
        return request_of(self, tenant, id)

    monkeypatch.setattr(Responses, "request_of", read_request)

    async def test() -> None:
        api = FakeServerApi()
        for id in ("first", "second"):
            api.responses.put(begun_before(id), lambda: None)
        assert [(one.request, one.input, one.body) for one in api.responses.unfinished()] == [(b"", "", "")] * 2
        async with serving(api, max_serving=1, max_wait_seconds=0.001) as url, http(url) as client:
            while not api.inferlets():
                await asyncio.sleep(0.005)
            assert read == ["first"]
            refused = await client.post("/v1/chat/completions", json={"model": "+hello"})
            assert refused.status_code == 503
            for id in ("i1", "i2"):
                while id not in {one.id for one in api.inferlets()}:
                    await asyncio.sleep(0.005)
                api.inferlet(id).send("end")
                assert await ended(api, id) == "finished"
            for id in ("first", "second"):
                while (found := (await client.get(f"{PATH}/{id}")).json()["status"]) == "in_progress":
                    await asyncio.sleep(0.005)
                assert found == "completed"

    asyncio.run(asyncio.wait_for(test(), HANG_SECONDS))


def test_the_body_of_a_request_is_not_held_while_its_answer_is_made() -> None:
    """Its client may have left long ago."""

    async def test(url: str, runtime: FakeServerApi) -> None:
        async with http(url) as client:
            with without_collections(ServedRequest) as left:
                await (await begun(client, "background"))
                assert [one.body for one in left()] == [b""]
            await client.post(f"{PATH}/background/cancel")

    serve_async(test)


def test_the_background_is_not_over_when_the_server_stops() -> None:
    async def test(url: str, runtime: FakeServerApi) -> None:
        async with http(url) as client:
            for id in ("background", "plain"):
                request = await begun(client, id)
                runtime.is_stopping = True
                runtime.inferlet("i1" if id == "background" else "i2").send("fail")
                await request
                await ended(runtime, "i1" if id == "background" else "i2")
                runtime.is_stopping = False
            assert (await client.get(f"{PATH}/plain")).json()["status"] == "failed"
            assert [one.id for one in runtime.responses.unfinished()] == ["background"]

    serve_async(test)
