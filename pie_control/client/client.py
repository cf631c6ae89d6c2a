"""The asynchronous client of one server."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import inspect
import json
import os
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

from pie_control.config import DEFAULT_SERVER
from pie_control.errors import BadRequest, PieError
from pie_control.http_server import messages as wire
from pie_control.inferlets.events import LogLine

from .connection import ServerSession, ServerUnavailable, address_of, authorization, certificates, error_of
from .mapping import mapped
from .programs.packages import check_no_source, is_file, name_of, read_file, read_program
from .programs.passing import as_value, passed, wrong
from .programs.shipping import program_of
from .running import Content, Running, check_watch

Program = str | os.PathLike[str] | bytes | Callable[..., Any]
"""What can be launched: a name or hash, a file or folder, the bytes of a program, a function."""
UPLOAD_SECONDS = 300.0
"""Long, because the server compiles a component before it answers."""


class Client:
    """A connection to a server, used as `async with Client(url) as client`. Belongs to one event loop.

    Inferlets launched with it end with it unless they are `detached`. Methods raise the errors of `pie_control.errors`
    that the server answers with, such as Unauthorized, and ServerUnavailable when it cannot be reached. After a
    connection that broke the next method connects again.
    """

    def __init__(self, server: str = DEFAULT_SERVER, token: str | None = None) -> None:
        """`token`: of a tenant, for a server that asks for one. It goes over the network as it is unless the address
        begins with https://. Raises Unauthorized for one that cannot be shown."""
        self.server = address_of(server)
        self._headers = authorization(token)
        self._connection: ServerSession | None = None
        self._connecting = asyncio.Lock()

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        await self.close()

    async def connect(self, timeout: float = 10.0) -> None:
        """Connects within `timeout` seconds, unless it is connected; raises ServerUnavailable."""
        async with self._connecting:
            if self._connection is None or self._connection.is_lost:
                self._connection = await ServerSession.open(self.server, self.upload_blob, timeout, self._headers)

    async def close(self) -> None:
        """Disconnects. Idempotent."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    # ---- programs ----

    async def upload(self, program: str | os.PathLike[str] | bytes, name: str | None = None) -> str:
        """Uploads a file, a folder (packages.py) or the bytes of a program, unless the server has it. Returns its
        content hash, for `launch`.

        `name` defaults to that of the folder, or of the file without its suffix; it stands for the newest upload. ""
        gives none. Raises BadProgram, StorageFull, BadRequest for a name that looks like a hash or a file.
        """
        digest: str = (await self.store(program, name))["program"]
        return digest

    async def store(self, program: str | os.PathLike[str] | bytes, name: str | None = None) -> dict[str, Any]:
        """Does what `upload` does. Returns the program as in `programs`; `replaced` is the hash of the one that had the
        name until now, if another had it."""
        if isinstance(program, bytes):
            return await self._store(program, name or "", "")
        if not isinstance(program, str | os.PathLike):
            raise wrong("program", "a file, a folder or the bytes of a program", program)
        check_no_source(str(program))
        file = name_of(Path(program))
        return await self._store(read_program(Path(program)), file if name is None else name, file)

    async def _store(self, data: bytes, name: str, file: str) -> dict[str, Any]:
        known: dict[str, Any] | None = await (await self._session()).request(
            wire.ShowProgram, program=hashlib.sha256(data).hexdigest()
        )
        if known is None or (name and known["name"] != name):
            answer = await self._request("POST", "/v1/programs", params={"name": name, "file": file}, content=data)
            known = json.loads(answer)
        assert known is not None, "it was there, or was uploaded"
        return known

    async def remove_program(self, program: str) -> None:
        """Deletes a program, given by content hash, a unique prefix of the hash, or name; its inferlets go on. Raises
        UnknownName."""
        await self._request("DELETE", f"/v1/programs/{quote(program, safe='')}")

    async def upload_blob(self, blob: str | os.PathLike[str] | bytes) -> str:
        """Uploads a file, or bytes, for launches of inferlets and messages to them, for a while. Returns the content
        hash. Raises StorageFull."""
        if not isinstance(blob, str | os.PathLike | bytes):
            raise wrong("blob", "a file or bytes", blob)
        data = blob if isinstance(blob, bytes) else read_file(Path(blob))
        await self._request("POST", "/v1/blobs", content=data)
        return hashlib.sha256(data).hexdigest()

    # ---- adapters ----

    async def adapters(self) -> list[dict[str, Any]]:
        """LoRA adapters that inferlets can use: name, model, folder, bytes."""
        found: list[dict[str, Any]] = json.loads(await self._request("GET", "/v1/adapters"))
        return found

    async def load_adapter(self, name: str, folder: str, model: str = "") -> dict[str, Any]:
        """Loads an adapter for a model, by default the first one. `folder`: on the server, inside its --adapter-dir.
        Raises BadRequest, Conflict if the name is taken, BadAdapter, which says what is wrong with its files."""
        body = json.dumps({"name": name, "folder": folder, "model": model})
        loaded: dict[str, Any] = json.loads(await self._request("POST", "/v1/adapters", content=body))
        return loaded

    async def drop_adapter(self, name: str, model: str = "") -> None:
        """Forgets an adapter: calls that name it fail from now on. Raises UnknownName."""
        await self._request("DELETE", f"/v1/adapters/{quote(name, safe='')}", params={"model": model})

    async def _request(self, method: str, path: str, **options: Any) -> bytes:
        """The body of the answer."""
        import httpx  # takes 0.1 s; most launches need no upload

        try:
            async with httpx.AsyncClient(
                headers=self._headers, trust_env=False, timeout=UPLOAD_SECONDS, verify=certificates(self.server)
            ) as http:
                answer = await http.request(method, f"{self.server}{path}", **options)
        except httpx.HTTPError as error:
            raise ServerUnavailable(f"the request {method} {path} to {self.server} broke: {error!r}") from None
        if answer.is_error:
            raise _error_of(answer.content, answer.status_code)
        return answer.content

    # ---- inferlets ----

    async def launch(
        self,
        program: Program,
        /,
        *args: Any,
        environment: Mapping[str, str] | None = None,
        blobs: Mapping[str, Content] | None = None,
        detached: bool = False,
        logs: bool = False,
        timeout: float | None = None,
        retries: int = 0,
        **kwargs: Any,
    ) -> Running:
        """Starts an inferlet of a program that the server has (its name, its content hash, or the beginning of that),
        of a file or folder, or of a function. A file or a function is uploaded by its content and takes no name.

        `args` and `kwargs` are the parameters of its `main`: JSON values; texts in `args` are words of a command line.
        The client ships the source of `function(args, ...)`, which may use `inferlet_sdk`, its arguments and modules
        that it imports itself, but nothing else of its own module.

        After `timeout` seconds it is ended, and the error says so. Where its worker or host was lost, it is launched
        again, `retries` times at most: from its beginning, under another id, after the messages that came until then.

        The inferlet ends with this client unless `detached`. Then it sends to whom attaches first: to this client when
        it waits for a message or the result, and to another one if it never does. With `logs`, `Running.events`
        includes its log lines. `blobs`: files (paths) or bytes, such as images, by the names under which the inferlet
        opens them. Raises UnknownName, BadProgram, and BadRequest for what cannot be sent.
        """
        check_watch(timeout, retries, detached)
        words, passed_on = passed(args, kwargs, environment)
        reference = await self._reference(program)
        uploaded = {name: await self.upload_blob(blob) for name, blob in (blobs or {}).items()}
        session = await self._session()
        launch = functools.partial(
            session.follow,
            wire.LaunchInferlet,
            program=reference,
            arguments=words,
            environment=passed_on,
            blobs=uploaded,
            detached=bool(detached),
            logs=bool(logs),
        )
        running = await launch()
        running.watch(timeout, retries, launch)
        return running

    async def _reference(self, program: Program) -> str:
        """By what the server launches it."""
        if isinstance(program, str) and not is_file(program):
            return program
        if isinstance(program, str | os.PathLike | bytes):
            return await self.upload(program, "")
        if not callable(program):
            raise wrong("program", "the name or hash of a program, a file, a folder or a function", program)
        stored = await self._store(program_of(program).encode(), "", program.__name__)
        return str(stored["program"])

    async def attach(self, inferlet: str, logs: bool = False) -> Running:
        """A running inferlet, with the messages that nobody has read; raises UnknownName, Conflict."""
        return await (await self._session()).follow(wire.Attach, inferlet=inferlet, logs=logs)

    async def run(
        self,
        program: Program,
        /,
        *args: Any,
        environment: Mapping[str, str] | None = None,
        blobs: Mapping[str, Content] | None = None,
        on_message: Callable[[str], Any] | None = None,
        timeout: float | None = None,
        retries: int = 0,
        **kwargs: Any,
    ) -> Any:
        """Launches what `launch` takes, such as a function, and returns its result. `on_message`, async or not, gets
        what it sends, as it comes. Raises as `launch`, and InferletEnded with the traceback if it fails."""
        running = await self.launch(
            program, *args, environment=environment, blobs=blobs, timeout=timeout, retries=retries, **kwargs
        )
        try:
            if on_message is not None:
                async for text in running:
                    if inspect.isawaitable(taken := on_message(text)):
                        await taken
            return await running.result()
        except BaseException:
            with contextlib.suppress(PieError):  # it, or the connection, has ended
                await running.terminate()
            raise

    async def map(
        self,
        program: Program,
        inputs: Iterable[Any],
        /,
        *,
        at_once: int = 16,
        ordered: bool = True,
        environment: Mapping[str, str] | None = None,
        timeout: float | None = None,
        retries: int = 0,
        **kwargs: Any,
    ) -> AsyncIterator[Any]:
        """The results of one inferlet for each input, the first argument of its `main`: `async for result in
        client.map(f, inputs)`. At most `at_once` run at a time. In the order of the inputs, or with `ordered=False` as
        they finish.

        An input is a JSON value; a text is no word of a command line here. `kwargs` are the same for all. Raises as
        `run`; the inferlets that run then end, and when the iterator is closed.
        """
        reference = await self._reference(program)

        async def run(value: Any) -> Any:
            env = as_value(value, environment)
            return await self.run(reference, value, environment=env, timeout=timeout, retries=retries, **kwargs)

        async with contextlib.aclosing(mapped(run, inputs, at_once, ordered)) as results:
            async for result in results:
                yield result

    # ---- look-ups ----

    async def programs(self) -> list[dict[str, Any]]:
        """All programs: program (content hash), name, names, file, kind, size, uploaded (seconds since the epoch)."""
        return await self._list(wire.ListPrograms)

    async def inferlets(self, *, of_all: bool = False) -> list[dict[str, Any]]:
        """Running and recently ended inferlets: id, program, program_name, status, created, ended, ... A result of more
        than 1,000 characters is None here. `of_all`: of all tenants; raises Forbidden unless this one may see them."""
        return await self._list(functools.partial(wire.ListInferlets, of_all=of_all))

    async def inferlet(self, inferlet: str, stack: bool = False) -> dict[str, Any]:
        """One inferlet, with the same fields as in `inferlets`; raises UnknownName. `stack`: and its log tells soon
        where its tasks are, unless it computes, or waits for the model alone."""
        return await (await self._session()).inferlet(inferlet, stack)

    async def logs(self, inferlet: str, after: int = 0) -> tuple[LogLine, ...]:
        """The log of any inferlet, behind the line whose `number` is `after`; raises UnknownName."""
        return await (await self._session()).logs(inferlet, after)

    async def terminate(self, inferlet: str) -> None:
        """Ends any inferlet; raises UnknownName."""
        await (await self._session()).terminate(inferlet)

    async def models(self) -> list[dict[str, Any]]:
        """Models: name, traits, page_size, max_context, ..."""
        return await self._list(wire.Models)

    async def statistics(self) -> dict[str, Any]:
        """Numbers of the server as nested objects; for a key that may not `admin`, those of its tenant."""
        value: dict[str, Any] = await (await self._session()).request(wire.Statistics)
        return value

    async def _list(self, kind: Callable[..., wire.Request]) -> list[dict[str, Any]]:
        value: list[dict[str, Any]] = await (await self._session()).request(kind)
        return value

    async def _session(self) -> ServerSession:
        if self._connection is not None and self._connection.is_lost:
            await self.connect()
        if self._connection is None:
            raise ServerUnavailable("the client is not connected: use it in `async with`, or call `connect` first")
        return self._connection


def _error_of(content: bytes, status: int) -> PieError:
    try:
        body = json.loads(content)["error"]
        return error_of(wire.ErrorBody(body["code"], body["message"]))
    except (ValueError, KeyError, TypeError):
        if status >= 500:
            return ServerUnavailable(f"the answer has status {status}, perhaps of a proxy whose server does not answer")
        return BadRequest(f"the server answered with status {status}: is it a Pie server?")
