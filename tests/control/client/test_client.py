"""The Python client against a server over a fake runtime."""

from __future__ import annotations

import asyncio
import functools
import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from pie_control.client import Client, InferletEnded, ServerUnavailable, SyncClient
from pie_control.client.connection import error_of
from pie_control.client.shipping import program_of
from pie_control.errors import BadProgram, BadRequest, Conflict, UnknownName
from pie_control.http_server.messages import ErrorBody
from pie_control.inferlets.events import Ended, LogLine, Message
from tests.helpers.fake_server_api import FakeServerApi, serve_async, serving, serving_thread

# ---- launching and talking --------------------------------------------------------------------------


def test_launch_streams_messages_and_gives_the_result() -> None:
    async def test(url: str, runtime: FakeServerApi) -> None:
        async with Client(url) as client:
            running = await client.launch("hello", "A", "B")
            assert [text async for text in running] == ["Hello, A! ", "Hello, B! "]
            assert await running.result() == 2
            assert [line.text for line in await running.logs()] == ["greeting"]
            with pytest.raises(InferletEnded, match="sends no more"):
                await running.receive()

    serve_async(test)


def test_events_hold_log_lines_when_asked_for() -> None:
    async def test(url: str, runtime: FakeServerApi) -> None:
        async with Client(url) as client:
            running = await client.launch("hello", logs=True)
            kinds = [type(event) async for event in running.events()]
            assert kinds == [LogLine, Message, Ended]

    serve_async(test)


def test_messages_go_both_ways() -> None:
    async def test(url: str, runtime: FakeServerApi) -> None:
        async with Client(url) as client:
            running = await client.launch("echo")
            for text in ("one", "zwei", "\x00三\n"):
                await running.send(text)
                assert await running.receive() == text
            await running.send("stop")
            assert await running.result() is None
            with pytest.raises(Conflict, match="has ended"):
                await running.send("too late")

    serve_async(test)


def test_a_failure_carries_status_and_traceback() -> None:
    async def test(url: str, runtime: FakeServerApi) -> None:
        async with Client(url) as client:
            running = await client.launch("fail")
            with pytest.raises(InferletEnded, match="ValueError: no good") as caught:
                await running.result()
            assert caught.value.status == "failed"

    serve_async(test)


def test_terminate_ends_and_result_says_so() -> None:
    async def test(url: str, runtime: FakeServerApi) -> None:
        async with Client(url) as client:
            running = await client.launch("wait")
            await running.terminate()
            with pytest.raises(InferletEnded) as caught:
                await running.result()
            assert caught.value.status == "terminated"

    serve_async(test)


def test_many_inferlets_share_one_connection() -> None:
    async def test(url: str, runtime: FakeServerApi) -> None:
        async with Client(url) as client:
            running = await asyncio.gather(*(client.launch("echo") for _ in range(50)))
            await asyncio.gather(*(each.send(each.id) for each in running))
            assert [await each.receive() for each in running] == [each.id for each in running]
            assert len(await client.inferlets()) == 50

    serve_async(test)


def test_detached_inferlets_outlive_the_client_and_can_be_attached_to() -> None:
    async def test(url: str, runtime: FakeServerApi) -> None:
        async with Client(url) as client:
            id = (await client.launch("echo", detached=True)).id
        async with Client(url) as client:
            running = await client.attach(id)
            await running.send("still there?")
            assert await running.receive() == "still there?"
            await client.terminate(id)
            assert (await client.inferlet(id))["status"] == "terminated"

    serve_async(test)


def test_a_launch_that_is_given_up_ends_its_inferlet() -> None:
    async def test(url: str, runtime: FakeServerApi) -> None:
        async with Client(url) as client:
            launching = asyncio.create_task(client.launch("wait"))
            while not runtime.inferlets():
                await asyncio.sleep(0)
            launching.cancel()
            while runtime.inferlet("i1").ended is None:
                await asyncio.sleep(0.005)
            assert len(await client.models()) == 1

    serve_async(test)


# ---- programs --------------------------------------------------------------------------


def test_upload_sends_a_program_once(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("x = 1\n")

    async def test(url: str, runtime: FakeServerApi) -> None:
        async with Client(url) as client:
            hash = await client.upload(file)
            assert await client.upload(str(file)) == await client.upload(file.read_bytes(), "mine") == hash
            assert runtime.uploads == 1
            assert await client.upload(file, "other name") == hash
            assert runtime.uploads == 2
            assert {"other name", "hello"} <= {program["name"] for program in await client.programs()}

    serve_async(test)


def test_upload_tells_what_is_wrong(tmp_path: Path) -> None:
    async def test(url: str, runtime: FakeServerApi) -> None:
        async with Client(url) as client:
            with pytest.raises(BadProgram, match="bad, line 2"):
                await client.upload(b"x = 1\ndef", "bad")
            with pytest.raises(BadRequest, match="cannot read"):
                await client.upload(tmp_path / "missing.py")
            with pytest.raises(UnknownName, match="upload it first"):
                await client.launch("nothing")

    serve_async(test)


def double(args: Any, number: int) -> int:
    """A function to ship."""
    return number * 2


def test_run_ships_a_function_with_its_arguments() -> None:
    async def test(url: str, runtime: FakeServerApi) -> None:
        async with Client(url) as client:
            assert await client.run(double, number=4) == {"number": 4}  # the fake's result is the arguments
            with pytest.raises(BadRequest, match="JSON"):
                await client.run(double, number=object())

    serve_async(test)


def inferlet(function: Callable[..., Any]) -> Callable[..., Any]:
    return function


@inferlet
async def decorated(args: Any) -> str:
    return "done"


def test_shipped_text_is_the_function_marked_as_the_entry() -> None:
    text = program_of(decorated)
    assert text.startswith("from inferlet_sdk import *\n")
    assert text.endswith("\ninferlet(decorated)\n")
    assert "@inferlet" not in text
    compile(text, "shipped", "exec")


def test_shipped_text_of_a_nested_function_is_dedented() -> None:
    def inner(args: Any) -> int:
        return 1

    assert "\ndef inner(" in program_of(inner)


def test_what_cannot_be_shipped_is_refused() -> None:
    outside = 3

    def closure(args: Any) -> int:
        return outside

    @functools.cache
    def marked(args: Any) -> None: ...

    namespace: dict[str, Any] = {}
    exec("def sourceless(args): pass", namespace)
    with pytest.raises(BadRequest, match=r"\(outside\): pass them as arguments"):
        program_of(closure)
    with pytest.raises(BadRequest, match="only @inferlet"):
        program_of(marked)
    with pytest.raises(BadRequest, match="source of sourceless"):
        program_of(namespace["sourceless"])
    for refused in (lambda args: 1, print, Path, "text".upper):
        with pytest.raises(BadRequest, match="only a function"):
            program_of(refused)


# ---- connections --------------------------------------------------------------------------


def test_no_server_is_told() -> None:
    for address in ("http://127.0.0.1:1", "127.0.0.1:8011", "http://"):
        with pytest.raises(ServerUnavailable, match="http://"):
            asyncio.run(Client(address).connect())


def test_a_server_that_starts_is_told() -> None:
    with socket.socket() as starting:  # it listens before it loads, and answers when it is ready
        starting.bind(("127.0.0.1", 0))
        starting.listen()
        url = f"http://127.0.0.1:{starting.getsockname()[1]}"
        with pytest.raises(ServerUnavailable, match=r"does not answer within 0\.05 s: it may be starting"):
            asyncio.run(Client(url).connect(timeout=0.05))


def test_a_server_of_another_kind_is_told() -> None:
    async def test(url: str, runtime: FakeServerApi) -> None:
        with pytest.raises(ServerUnavailable, match="is it a Pie server"):
            await Client(f"{url}/elsewhere").connect()

    serve_async(test)


def test_a_launch_takes_files_and_bytes(tmp_path: Path) -> None:
    (tmp_path / "cat.png").write_bytes(b"cat")

    async def test(url: str, runtime: FakeServerApi) -> None:
        async with Client(url) as client:
            await (await client.launch("echo", blobs={"a": tmp_path / "cat.png", "b": b"dog"})).terminate()
        assert runtime.launched_with == {"a": b"cat", "b": b"dog"}
        async with httpx.AsyncClient(base_url=url, trust_env=False) as http:
            kept = (await http.post("/v1/blobs", content=b"bird")).json()
            assert kept["size"] == 4
            body = {"program": "echo", "blobs": {"c": kept["blob"]}}
            inferlet = (await http.post("/v1/inferlets", json=body)).json()["id"]
            assert runtime.launched_with == {"c": b"bird"}
            told = {"text": "see", "blobs": {"d": kept["blob"]}}
            assert (await http.post(f"/v1/inferlets/{inferlet}/messages", json=told)).status_code == 202
        assert runtime.sent_with == {"d": b"bird"}

    serve_async(test)


def test_a_message_takes_files_and_bytes(tmp_path: Path) -> None:
    (tmp_path / "cat.png").write_bytes(b"cat")

    async def test(url: str, runtime: FakeServerApi) -> None:
        async with Client(url) as client:
            running = await client.launch("echo")
            await running.send("see", blobs={"a": tmp_path / "cat.png", "b": b"dog"})
            assert runtime.sent_with == {"a": b"cat", "b": b"dog"}
            with pytest.raises(BadRequest, match=r"cannot read .*none\.png"):
                await running.send("see", blobs={"a": tmp_path / "none.png"})

    serve_async(test)


def test_a_client_that_is_not_connected_says_so() -> None:
    with pytest.raises(ServerUnavailable, match="async with"):
        asyncio.run(Client("http://127.0.0.1:1").models())


def test_a_server_that_goes_away_is_told_to_everyone_who_waits() -> None:
    async def test() -> None:
        runtime = FakeServerApi()
        async with serving(runtime) as url:
            client = Client(url)
            await client.connect()
            ended, waiting = await client.launch("echo"), await client.launch("wait")
            runtime.close = _nothing  # type: ignore[method-assign]
        with pytest.raises(ServerUnavailable):
            await waiting.result()
        with pytest.raises(ServerUnavailable):
            await ended.receive()
        with pytest.raises(ServerUnavailable):
            await client.models()
        await client.close()
        for inferlet in runtime.inferlets():
            runtime.terminate(inferlet.id, "test is over")

    asyncio.run(test())


async def _nothing() -> None:
    return None


def test_inferlets_hear_of_an_orderly_end_of_the_server() -> None:
    async def test() -> None:
        async with serving(FakeServerApi()) as url:
            client = Client(url)
            await client.connect()
            running = await client.launch("wait")
        with pytest.raises(InferletEnded, match="shutting down"):
            await running.result()
        await client.close()
        await client.close()

    asyncio.run(test())


def test_error_codes_become_their_exceptions() -> None:
    assert isinstance(error_of(ErrorBody("bad-program", "line 3")), BadProgram)
    assert str(error_of(ErrorBody("from-the-future", "why"))) == "why"


# ---- the synchronous face --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving_thread() as url:
        yield url


def test_sync_client(url: str, tmp_path: Path) -> None:
    with SyncClient(url) as client:
        running = client.launch("hello", "A", logs=True)
        assert [type(event) for event in running.events()] == [LogLine, Message, Ended]
        assert running.result() == 1
        echo = client.launch("echo", detached=True)
        echo.send("hi")
        assert echo.receive() == "hi"
        assert client.run(double, number=1) == {"number": 1}
        assert client.models()[0]["name"] == "fake"
        assert json.dumps(client.statistics())
        assert client.launch(client.upload(b"x = 1", "x"), environment={"kwargs": "[]"}).result() == []
        echo_id = echo.id
    with SyncClient(url) as client:
        echo = client.attach(echo_id)
        echo.terminate()
        assert list(echo) == []
        assert client.inferlet(echo_id)["status"] == "terminated"
    with pytest.raises(RuntimeError, match="in `with`"):
        client.models()


def test_sync_client_without_a_server_leaves_no_thread() -> None:
    client = SyncClient("http://127.0.0.1:1")
    with pytest.raises(ServerUnavailable):
        client.__enter__()
    client.close()
