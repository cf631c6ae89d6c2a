"""The Python client against a server over a fake runtime."""

from __future__ import annotations

import asyncio
import functools
import gc
import importlib
import itertools
import json
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from inferlet_sdk import Context, gather
from pie_control.client import Client, InferletEnded, ServerUnavailable, SyncClient
from pie_control.client.connection import certificates, error_of
from pie_control.client.mapping import AHEAD, mapped
from pie_control.client.programs.shipping import program_of
from pie_control.errors import BadProgram, BadRequest, Conflict, UnknownName
from pie_control.http_server.messages import ErrorBody
from pie_control.inferlets.events import Ended, LogLine, Message
from tests.helpers.fake_inferlets import BODIES, FakeInferlet
from tests.helpers.fake_server_api import FakeServerApi, serve_async, serving, serving_thread
from tests.helpers.guard import HANG_SECONDS

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


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """A key, and a certificate that it signed itself."""
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    made = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=our-authority"
    subprocess.run(["openssl", *made.split(), "-keyout", key, "-out", cert], check=True, capture_output=True)
    return key, cert


def test_requests_trust_the_authorities_that_the_user_names(
    certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate[1]))
    trusted = certificates("https://pie.example.com")
    assert isinstance(trusted, ssl.SSLContext)
    assert "our-authority" in str(trusted.get_ca_certs())
    assert certificates("http://127.0.0.1:8011") is False


def test_a_certificate_that_is_not_trusted_is_told(certificate: tuple[Path, Path]) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate[1], certificate[0])

    async def test() -> None:
        async with await asyncio.start_server(lambda *_: None, "127.0.0.1", 0, ssl=context) as server:
            port = server.sockets[0].getsockname()[1]
            with pytest.raises(ServerUnavailable, match=r"certificate of .* is not trusted here \(.*SSL_CERT_FILE"):
                await Client(f"https://127.0.0.1:{port}").connect()

    asyncio.run(asyncio.wait_for(test(), HANG_SECONDS))


def test_a_client_connects_again_once_its_server_is_back() -> None:
    async def test() -> None:
        async with serving(FakeServerApi()) as url:
            client = Client(url)
            await client.connect()
        with pytest.raises(ServerUnavailable, match=r"was closed|no Pie server answers"):
            await client.programs()
        async with serving(FakeServerApi(), int(url.rpartition(":")[2])):
            first, second = await asyncio.gather(client.programs(), client.run("hello", "A"))
            assert first
            assert second == 1
            await client.close()
        with pytest.raises(ServerUnavailable, match="not connected"):
            await client.programs()

    asyncio.run(asyncio.wait_for(test(), HANG_SECONDS))


@pytest.mark.parametrize(("status", "kind"), [(502, ServerUnavailable), (404, BadRequest)])
def test_an_upload_that_only_a_proxy_answers(
    status: int, kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def answer(*_: object, **__: object) -> httpx.Response:
        return httpx.Response(status, text="<html>")

    async def test(url: str, runtime: FakeServerApi) -> None:
        async with Client(url) as client:
            monkeypatch.setattr(httpx.AsyncClient, "request", answer)
            with pytest.raises(kind, match=f"status {status}"):
                await client.upload_blob(b"x")

    serve_async(test)


def test_events_hold_log_lines_when_asked_for() -> None:
    async def test(url: str, runtime: FakeServerApi) -> None:
        async with Client(url) as client:
            running = await client.launch("hello", logs=True)
            kinds = [type(event) async for event in running.events()]
            assert kinds == [LogLine, Message, Ended]

    serve_async(test)


def test_run_gives_messages_as_they_come() -> None:
    async def test(url: str, runtime: FakeServerApi) -> None:
        said: list[str] = []

        async def take(text: str) -> None:
            said.append(text)

        async with Client(url) as client:
            assert await client.run("hello", "A", "B", on_message=said.append) == 2
            assert await client.run("hello", "C", on_message=take) == 1
            assert said == ["Hello, A! ", "Hello, B! ", "Hello, C! "]

    serve_async(test)


def test_an_inferlet_is_ended_after_its_timeout() -> None:
    async def test(url: str, runtime: FakeServerApi) -> None:
        async with Client(url) as client:
            with pytest.raises(InferletEnded, match=r"it ran longer than its client gave it \(timeout=0.05 s\)"):
                await client.run("wait", timeout=0.05)
            running = await client.launch("echo", timeout=HANG_SECONDS)
            await running.send("stop")
            assert await running.result() is None

    serve_async(test)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"timeout": 0}, "timeout: give seconds, more than 0"),
        ({"retries": -1}, "retries: give a number of 0 or more"),
        ({"timeout": 1, "detached": True}, "which a detached inferlet outlives"),
    ],
)
def test_what_nobody_can_keep_is_refused(options: dict[str, Any], why: str) -> None:
    async def test(url: str, runtime: FakeServerApi) -> None:
        async with Client(url) as client:
            with pytest.raises(BadRequest, match=why):
                await client.launch("wait", **options)

    serve_async(test)


def test_what_was_lost_is_launched_again() -> None:
    async def test(url: str, runtime: FakeServerApi) -> None:
        async with Client(url) as client:
            running = await client.launch("echo", retries=1)
            first = running.id
            await running.send("before")
            runtime.inferlet(first).end("lost", None, "its host was lost")
            while running.id == first:
                await asyncio.sleep(0.01)
            await running.send("after")
            assert await running.receive() in ("before", "after")
            runtime.inferlet(running.id).end("lost", None, "its host was lost again")
            with pytest.raises(InferletEnded, match="its host was lost again"):
                await running.result()

    serve_async(test)


@pytest.mark.parametrize("retries", [1, 2])
def test_what_is_terminated_after_its_loss_is_not_launched_again(retries: int) -> None:
    async def test(url: str, runtime: FakeServerApi) -> None:
        async with Client(url) as client:
            running = await client.launch("wait", retries=retries)
            runtime.inferlet(running.id).end("lost", None, "its host was lost")
            while (await running.info())["ended"] is None:
                await asyncio.sleep(0.01)
            await client.inferlets()  # an answer behind its last event
            await running.terminate()
            with pytest.raises(InferletEnded, match="terminated by a client"):
                await running.result()
            assert [info["id"] for info in await client.inferlets()] == [running.id]

    serve_async(test)


def test_what_cannot_be_launched_again_is_lost() -> None:
    async def test(url: str, runtime: FakeServerApi) -> None:
        async with Client(url) as client:
            running = await client.launch("wait", retries=1)
            await client.remove_program("wait")
            runtime.inferlet(running.id).end("lost", None, "its host was lost")
            with pytest.raises(InferletEnded, match="its host was lost; it could not be launched again: no program"):
                await running.result()

    serve_async(test)


async def same(inferlet: FakeInferlet) -> str:
    """Returns its input; 0 takes longer."""
    value = json.loads(inferlet.environment["args"])["0"]
    if value == "--bad":
        raise ValueError("bad input")
    if value == 0:
        await asyncio.sleep(0.1)
    return json.dumps(value)


def test_map_keeps_the_order_or_gives_what_finishes() -> None:
    async def test(url: str, runtime: FakeServerApi) -> None:
        runtime._add(b"same", "same", same)
        async with Client(url) as client:
            inputs = [0, "a", None, {"x": [1]}, "--b=1"]
            assert [one async for one in client.map("same", inputs, at_once=2)] == inputs
            found = [one async for one in client.map("same", inputs, at_once=2, ordered=False)]
            assert sorted(map(str, found)) == sorted(map(str, inputs))
            with pytest.raises(InferletEnded, match="bad input"):
                [one async for one in client.map("same", ["a", "--bad", "b"])]
            with pytest.raises(BadRequest, match="at_once: give a number of 1 or more, not 0"):
                [one async for one in client.map("same", inputs, at_once=0)]

    serve_async(test)


@pytest.mark.parametrize(("ordered", "first"), [(True, 0), (False, 1)])
def test_so_many_run_at_once(ordered: bool, first: int) -> None:
    async def test() -> None:
        going, most, last = 0, 0, asyncio.Event()

        async def call(value: int) -> int:
            nonlocal going, most
            going += 1
            most = max(most, going)
            await (asyncio.sleep(0) if value else last.wait())
            if value == 8:
                last.set()
            going -= 1
            return value

        found = [one async for one in mapped(call, range(9), 3, ordered)]
        assert (found[0], sorted(found), most) == (first, list(range(9)), 3)

    asyncio.run(test())


def test_calls_have_ended_when_their_iterator_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        going = set[int]()

        async def run(_client: Client, _program: str, value: int, **_: object) -> int:
            going.add(value)
            try:
                await (asyncio.sleep(0) if value == 0 else asyncio.Event().wait())
            finally:
                going.remove(value)
            return value

        monkeypatch.setattr(Client, "run", run)
        results: Any = Client("http://127.0.0.1:1").map("same", range(9), at_once=3)
        assert await anext(results) == 0
        await results.aclose()
        assert going == set()

    asyncio.run(test())


def test_results_behind_a_slow_one_are_bounded() -> None:
    async def test() -> None:
        began, last = 0, asyncio.Event()

        async def call(value: int) -> int:
            nonlocal began
            began += 1
            if value == 0:
                await last.wait()
            elif value == 3 * AHEAD - 1:
                asyncio.get_running_loop().call_soon(last.set)
            return value

        results: Any = mapped(call, itertools.count(), 3, True)
        assert await anext(results) == 0
        assert began == 3 * AHEAD
        assert [await anext(results) for _ in range(50)] == [*range(1, 51)]
        await results.aclose()

    asyncio.run(test())


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


def test_what_is_too_long_for_a_frame_is_refused_and_ends_nothing() -> None:
    async def test(url: str, _: FakeServerApi) -> None:
        async with Client(url) as client:
            running = await client.launch("echo")
            for too_long in (running.send("x" * 400_000), client.launch("echo", "x" * 400_000)):
                with pytest.raises(BadRequest, match=r"has 4000\d\d bytes, and http.* takes 365536 at a time"):
                    await too_long
            await running.send("x" * 300_000)
            assert len(await running.receive()) >= 300_000

    serve_async(test, max_message_bytes=100_000)


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


def test_what_a_detached_inferlet_says_is_kept_for_whom_attaches_first() -> None:
    async def test(url: str, runtime: FakeServerApi) -> None:
        async with Client(url) as client:
            unread = await client.launch("hello", "Ada", detached=True)
            while runtime.inferlet(unread.id).ended is None:
                await asyncio.sleep(0)
            await client.models()  # what the server would have sent has come
            read = await client.launch("hello", detached=True, logs=True)
            assert [type(each) async for each in read.events()] == [LogLine, Message, Ended]
            both = await client.launch("hello", "Eve", detached=True)
            assert [*await asyncio.gather(both.receive(), both.result())] == ["Hello, Eve! ", 1]
        async with Client(url) as client:
            assert [text async for text in await client.attach(unread.id)] == ["Hello, Ada! "]
            taken = await client.launch("echo", detached=True)
            async with Client(url) as other:
                await other.attach(taken.id)
                with pytest.raises(Conflict):
                    await taken.receive()
            await taken.send("to me")
            assert await taken.receive() == "to me", "the other one has left"

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


def test_a_launch_that_is_given_up_as_its_reply_comes_ends_its_inferlet() -> None:
    async def test(url: str, runtime: FakeServerApi) -> None:
        async with Client(url) as client:
            session = await client._session()
            take = session._take_reply
            for when in ("before", "after"):
                launching = asyncio.create_task(client.launch("wait"))

                def take_and_cancel(id: int, value: Any, launching: Any = launching, when: str = when) -> None:
                    if when == "before":
                        launching.cancel()
                    take(id, value)
                    launching.cancel()

                session._take_reply = take_and_cancel  # type: ignore[method-assign]
                with pytest.raises(asyncio.CancelledError):
                    await launching
                session._take_reply = take  # type: ignore[method-assign]
            while {each.status for each in runtime.inferlets()} != {"terminated"}:
                await asyncio.sleep(0.005)
            assert len(runtime.inferlets()) == 2

    serve_async(test)


def test_a_run_ends_when_all_tasks_are_cancelled() -> None:
    async def test(url: str, runtime: FakeServerApi) -> None:
        async with Client(url) as client:
            running = asyncio.create_task(client.run("wait"))
            while not runtime.inferlets():
                await asyncio.sleep(0)
            for one in ((await client._session())._reader, running):
                one.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running

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
            with pytest.raises(BadRequest, match="a program's own text as bytes"):
                await client.upload("from a import b\n" * 99)
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
            assert await client.run(double, 4, environment={"kwargs": "5"}) == 5
            assert [each["names"] for each in await client.programs() if each["file"] == "double"] == [[]]

    serve_async(test)


async def arguments(args: Any, *words: Any, **rest: Any) -> None:
    """Its result, in the fake, is what came by name."""


def test_a_launch_takes_names_hashes_files_folders_bytes_and_functions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file, folder = tmp_path / "one.py", tmp_path / "hello"
    file.write_text("x = 1")
    folder.mkdir()
    (folder / "main.py").write_text("x = 2")

    async def test(url: str, runtime: FakeServerApi) -> None:
        runtime.compiles = False  # an archive is no Python
        async with Client(url) as client:
            digest = await client.upload(b"x = 3")
            for program in (digest, file, "one.py", str(folder), b"x = 4", arguments):
                assert await client.run(program, size=3) == {"size": 3}
            assert await (await client.launch("hello", "A")).receive() == "Hello, A! "  # not the folder
            assert {name for each in runtime.programs() for name in each.names} == {body.__name__ for body in BODIES}
            with pytest.raises(UnknownName, match=r"no program 'two\.py': upload it first"):
                await client.launch("two.py")

    serve_async(test)


def test_values_keep_their_types_and_texts_are_words() -> None:
    async def test(url: str, runtime: FakeServerApi) -> None:
        async with Client(url) as client:
            running = await client.launch(
                "wait", "bees", 3, "--loud", [1, None], environment={"a": "b"}, topic={"x": 1.5}
            )
            inferlet = runtime.inferlet(running.id)
            assert inferlet.arguments == ["bees", "3", "--loud", "[1, null]"]
            told = {"a": "b", "args": '{"1": 3, "3": [1, null]}', "kwargs": '{"topic": {"x": 1.5}}'}
            assert inferlet.environment == told

    serve_async(test)


@pytest.mark.parametrize(
    ("args", "kwargs", "why"),
    [
        ((3,), {}, "program: give the name or hash of a program, a file, a folder or a function, not int 3"),
        (("import x\n" * 99,), {}, "program: a text names a program, .*; upload a program's own text as bytes"),
        (("p", {1}), {}, r"args\[0\]: give text, a number, True, .*, not set {1}"),
        (("p",), {"where": Path("x")}, r"where: give text, a number, .*, not PosixPath PosixPath\('x'\)"),
        (("p", 10**5000), {}, r"args\[0\]: give text, .*, not such a int, which cannot be written"),
        (("p", "a\ud800"), {}, r"args\[0\]: character 1 is half of a surrogate pair"),
        (("p",), {"environment": {"a": 1}}, r"environment\['a'\]: give text, not int 1"),
        (("p",), {"environment": "a"}, "environment: give a mapping of names to texts, not str 'a'"),
        (("p",), {"blobs": {"photo": 5}}, "blob: give a file or bytes, not int 5"),
    ],
)
def test_what_cannot_be_sent_is_told_by_name(args: tuple[Any, ...], kwargs: dict[str, Any], why: str) -> None:
    async def test(url: str, runtime: FakeServerApi) -> None:
        async with Client(url) as client:
            for call in (client.launch, client.run):
                with pytest.raises(BadRequest, match=why):
                    await call(*args, **kwargs)
        assert (runtime.uploads, runtime.inferlets()) == (0, ())

    serve_async(test)


NUMBER = 3
math = pytest  # some module


def test_what_only_the_module_of_a_function_has_is_told_before_anything_is_sent() -> None:
    def uses(args: Any, more: int = NUMBER) -> Any:
        import json

        def inner() -> Any:
            return math, double, json

        return [NUMBER for _ in range(more)], inner, Path("x"), gather, Context, __name__

    async def test(url: str, runtime: FakeServerApi) -> None:
        async with Client(url) as client:
            with pytest.raises(BadRequest) as caught:
                await client.run(uses)
        assert str(caught.value) == (
            "uses runs without the module around it: pass NUMBER as an argument; define Path inside of it; "
            "import math inside of it; define double inside of it"
        )
        assert runtime.uploads == 0

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


def test_shipped_strings_stay_as_they_are() -> None:
    def inner() -> str:
        return """one
            two
  three"""

    shipped: dict[str, Any] = {"inferlet": lambda function: function}
    exec(program_of(inner).removeprefix("from inferlet_sdk import *\n"), shipped)
    assert shipped["inner"]() == inner()


def test_shipped_strings_may_have_what_others_take_for_the_end_of_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "one\u2028two\x0cthree"
    (tmp_path / "separated.py").write_text(f'def separated(args):\n    return "{text}"\n', "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    assert text in program_of(importlib.import_module("separated").separated)


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


def test_what_may_be_done_although_its_reply_is_lost_is_told() -> None:
    async def test(url: str, runtime: FakeServerApi) -> None:
        async with Client(url) as client:
            echo = await client.launch("echo")
            session = await client._session()
            session._take_reply = lambda id, value: None  # type: ignore[method-assign]
            asked = [client.launch("wait", detached=True), echo.send("hello"), client.launch("wait"), client.models()]
            waiting = [asyncio.create_task(one) for one in asked]
            while len(runtime.inferlets()) < 3:
                await asyncio.sleep(0)
            session._lose(ServerUnavailable("gone"))
            told = [str(each) for each in await asyncio.gather(*waiting, return_exceptions=True)]
            assert "gone; the inferlet may run all the same" in told[0]
            assert told[1:] == ["gone; the message may have come all the same", "gone", "gone"]

    serve_async(test)


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
    with pytest.raises(RuntimeError, match="make another one"):
        client.models()


def test_sync_client_without_with(url: str) -> None:
    said: list[tuple[str, str]] = []
    client = SyncClient(url)
    assert client.run("hello", "A", on_message=lambda text: said.append((text, threading.current_thread().name))) == 1
    assert said == [("Hello, A! ", threading.current_thread().name)]
    assert list(client.map(double, [1, 2], number=3)) == [{"number": 3}] * 2
    with pytest.raises(InferletEnded, match=r"timeout=0.05 s"):
        client.run("wait", timeout=0.05)
    inferlet = client.launch("wait").id
    assert client._thread is not None
    thread = client._thread._thread
    del client
    gc.collect()
    thread.join(HANG_SECONDS)
    assert not thread.is_alive()
    other = SyncClient(url)
    assert other.inferlet(inferlet)["status"] == "terminated"
    other.close()
    other.close()


def test_sync_client_opens_once(url: str) -> None:
    client = SyncClient(url)
    threads = [threading.Thread(target=client.models) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    opened = client._thread
    with client:
        assert client.models()
        assert client._thread is opened
    with client:
        assert client.models()


def test_an_error_of_the_caller_is_not_hidden_by_a_lost_connection(url: str) -> None:
    client = SyncClient(url)

    def fails(text: str) -> None:
        client._call(client._asynchronous.close())
        raise ValueError(text)

    with pytest.raises(ValueError, match="Hello, world!"):
        client.run("hello", on_message=fails)
    client.close()


def test_sync_client_without_a_server_leaves_no_thread() -> None:
    client = SyncClient("http://127.0.0.1:1")
    with pytest.raises(ServerUnavailable):
        client.__enter__()
    client.close()
