"""The stored answers of all tenants: those that are made, and those that are there."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from ...durable.responses import ResponseRecord, Responses
from ...errors import RateLimited
from ...host_memory import TenantBytes
from ...inferlets.events import Ended
from ...services.nesting import members_of
from ...tenants.tenant import Standing
from ..ending import result_of
from ..refusal import Refused
from ..request import ServedRequest, read_request
from .marks import Store, with_end
from .running import Running

MOST_FETCHES = 8
"""Times that a program asks for earlier answers: once is enough, and each may be large."""
MOST_TURNS = 1000
"""Answers before one, which a program gets with it."""
MOST_CONVERSATION = 64 << 20
"""Characters of an answer and those before it."""
MOST_MARK = 64 << 20
"""Bytes of all parts of what a program says to the server."""
MOST_MARKS = 256 << 20
"""Bytes of the parts that all programs of a tenant have said, each until its request is answered."""
MADE_PART = 8
"""All answers that are made, with what was asked and their events, have this part of the machine's memory: an
eighth."""
MOST_MEMBERS = 10_000
"""Items of what was asked, and members of an answer: of each an object is made, where it is read."""
SMALL = 64 << 10
"""Bytes of an answer that is looked at at once; a larger one on a thread."""
Read = TypeVar("Read")
LOST = "the server ended before the answer did: ask again"
MOST_TRIES = 3
KILLED = (
    f"the server was killed {MOST_TRIES + 1} times while it made this answer, which may be why: ask for less, or tell "
    "its operator"
)


class StoredAnswers:
    """Belongs to one event loop."""

    def __init__(self, responses: Responses, is_stopping: Callable[[], bool] = lambda: False) -> None:
        """`is_stopping`: whether the server is about to end. Then what is made in the background is not over."""
        self._responses = responses
        self._is_stopping = is_stopping
        self._running: dict[tuple[str, str], Running] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._over = WeakValueDictionary[tuple[str, str], Running]()  # that clients read: they share a large one
        self._reading = WeakValueDictionary[str, asyncio.Lock]()  # by tenant
        self._coming: dict[tuple[str, str], asyncio.Task[Any]] = {}  # begin again when there is a place
        self._parts: Counter[str] = Counter()  # bytes, by tenant
        self._made = TenantBytes(MADE_PART, "of stored answers that are made: try again when some have ended")

    def hold(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Runs what may outlive the request that it comes of."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def make_again(self, record: ResponseRecord, work: Coroutine[Any, Any, None]) -> None:
        """Runs what makes an answer anew, unless a client gives it up before it begins."""
        key = record.tenant, record.id
        self._coming[key] = task = self.hold(work)
        task.add_done_callback(lambda _: self._coming.pop(key, None))

    def _give_up(self, tenant: str, id: str) -> None:
        if (task := self._coming.pop((tenant, id), None)) is not None:
            task.cancel()

    def unfinished(self) -> list[ResponseRecord]:
        """What the server before was making."""
        return self._responses.unfinished()

    async def count_tries(self) -> None:
        """Those of the background are about to begin again. What kills the server shall not do so for ever."""
        done = asyncio.Event()
        self._responses.count_tries(done.set)
        await done.wait()

    async def request_of(self, record: ResponseRecord) -> ServedRequest:
        """What was asked of one that begins again. Raises Refused."""

        def read() -> ServedRequest:
            body = self._responses.request_of(record.tenant, record.id)
            return read_request(record.route, record.request_id, body, record.request_id)

        return await self.read(record.tenant, read)

    async def fail(self, record: ResponseRecord, reason: str) -> None:
        """Ends an answer that nobody makes any more, unless it has ended."""
        found = await asyncio.to_thread(self._responses.find_kept, record.tenant, record.id)
        if found is not None and found.ended is None:
            body = with_end(found.body, "failed", {"code": "server_error", "message": reason})
            await self._end(Running(found), body)

    async def begin(self, mark: Store, inferlet: str, standing: Standing, request: ServedRequest) -> Running:
        """A program wants its answer stored, which runs in a standing. Raises Refused if there is one of this
        identifier, or it is no answer; Overloaded if there is no room for it."""
        await _check(mark)
        tenant = standing.tenant.name
        key = tenant, mark.id
        found = await asyncio.to_thread(self._responses.find_kept, *key)
        begins_again = self._coming.get(key) not in (None, asyncio.current_task())
        if begins_again or key in self._running or (found is not None and found.ended is not None):
            raise Refused(409, f"there is a response {mark.id!r} already: choose another request_id", "conflict")
        body = request.body if mark.background else b""
        record = ResponseRecord(
            *(tenant, mark.id, inferlet, request.route, request.answer_id, time.time(), None, mark.background),
            *(request.stream, mark.previous, body, bytes(mark.input).decode(), bytes(mark.body).decode(), (), False),
            *(standing.key, found.tries if found is not None else 0),
        )
        running = self._running[key] = Running(replace(record, request=b""), self._made)
        self._coming.pop(key, None)
        try:
            await self._put(record)
        except asyncio.CancelledError:  # the client has left before it could know of it
            self._running.pop(key).finish(record)
            self._responses.delete(record, lambda: None)
            raise
        return running

    async def end(
        self,
        running: Running,
        ended: Ended,
        error_event: Callable[[Refused], str],
        refusal_today: Callable[[], RateLimited | None],
    ) -> None:
        """Its program has ended. `error_event`: what an error is in a stream; `refusal_today`: as of `result_of`."""
        record, error = running.record, None
        try:
            body = result_of(ended, refusal_today)
        except Refused as refused:
            if running.is_cancelled:
                body = with_end(record.body, "cancelled")
            else:
                error = refused
                code = "server_error" if refused.status >= 500 else refused.code or "invalid_prompt"
                body = with_end(record.body, "failed", {"code": code, "message": str(refused)})
                if running.count:
                    running.add(error_event(refused))
        is_over = not record.background or running.is_cancelled or error is None or not self._is_stopping()
        try:
            await self._end(running, body, error, is_over)
        finally:
            del self._running[record.tenant, record.id]

    async def _end(self, running: Running, body: str, error: Refused | None = None, is_over: bool = True) -> None:
        """Stores what an answer came to, if it is over; then those hear of it who read it."""
        record = running.ended(body, time.time())
        try:
            if is_over:
                await self._put(record)
        finally:
            running.finish(record, error)

    async def _put(self, record: ResponseRecord) -> None:
        done = asyncio.Event()
        self._responses.put(record, done.set)
        await done.wait()

    @contextmanager
    def parts_of(self, tenant: str) -> Iterator[Callable[[str], None]]:
        """Counts the parts of what a program of a tenant says to the server, while it runs; what this gives is called
        with each of them, and raises Refused if there are too many."""
        held = 0

        def hold(text: str) -> None:
            nonlocal held
            count = len(text.encode("utf-8", "surrogatepass"))
            for bound, there, whose in ((MOST_MARK, held, "a program"), (MOST_MARKS, self._parts[tenant], "a tenant")):
                if there + count > bound:
                    raise Refused(413, f"{whose} has more than {bound >> 20} MiB stored by the server at a time")
            self._parts[tenant] += count
            held += count

        try:
            yield hold
        finally:
            self._parts[tenant] -= held
            self._parts += Counter()  # drops tenants without any

    # ---- for clients ----

    async def read(self, tenant: str, work: Callable[[], Read]) -> Read:
        """Does on a thread what reads answers of a tenant. Each may take much memory, so one waits for the other."""
        async with self._reading.setdefault(tenant, asyncio.Lock()):
            return await asyncio.to_thread(work)

    def find(self, tenant: str, id: str) -> Running:
        """An answer that is made, or one that is there. Takes time: call this in a thread. Raises Refused."""
        key = tenant, id
        if (running := self._running.get(key) or self._over.get(key)) is not None:
            return running
        record = self._responses.find(tenant, id)
        if record is None:
            raise Refused(404, f"Response with id {id[:80]!r} not found.", "response_not_found")
        running = Running.over(record)
        if record.ended is not None:
            self._over[key] = running
        return running

    def conversation(self, tenant: str, id: str) -> str:
        """An answer and those before it, oldest first, as JSON: [{"input": ..., "body": ...}, ...]. Takes time: call
        this in a thread. Raises Refused."""
        turns: dict[str, str] = {}
        size = 0
        while id:
            if len(turns) == MOST_TURNS:
                raise Refused(400, f"the conversation has more than {MOST_TURNS} turns: begin a new one")
            if id in turns:
                raise Refused(400, f"the response {id[:80]!r} comes before itself: begin a new conversation")
            found = self._responses.find_kept(tenant, id) if turns else None
            if found is None:
                running = self.find(tenant, id)
                if not running.is_over:
                    raise Refused(400, f"Response with id {id[:80]!r} is not finished yet: wait for its end")
                found = running.record
            size += len(found.input) + len(found.body)
            if size > MOST_CONVERSATION:
                raise Refused(400, f"the conversation is longer than {MOST_CONVERSATION >> 20} MiB: begin a new one")
            turns[id] = f'{{"input": {found.input}, "body": {found.body}}}'
            id = found.previous
        return f"[{', '.join(reversed(turns.values()))}]"

    async def cancel(self, tenant: str, id: str, terminate: Callable[[str], None]) -> ResponseRecord:
        """Ends an answer that is made in the background; nothing happens if it has ended. `terminate` ends an inferlet.
        Raises Refused."""
        found = await asyncio.to_thread(self.find, tenant, id)
        if not found.record.background:
            raise Refused(400, "only a response with background=true can be cancelled: leave, or delete it", None, "id")
        if not found.is_over:
            await self._stop(found, terminate)
        elif found.record.ended is None:  # it was about to begin again
            self._give_up(tenant, id)
            await self._end(found, with_end(found.record.body, "cancelled"))
        return found.record

    async def delete(self, tenant: str, id: str, terminate: Callable[[str], None]) -> None:
        """Forgets an answer; what is made of it ends. Raises Refused."""
        found = await asyncio.to_thread(self.find, tenant, id)
        if not found.is_over:
            await self._stop(found, terminate)
            found = await asyncio.to_thread(self.find, tenant, id)
        self._give_up(tenant, id)
        self._over.pop((tenant, id), None)
        done = asyncio.Event()
        self._responses.delete(found.record, done.set)
        await done.wait()

    async def _stop(self, running: Running, terminate: Callable[[str], None]) -> None:
        running.is_cancelled = True
        terminate(running.record.inferlet)
        await running.wait_for_end()


async def _check(mark: Store) -> None:
    """Raises Refused for an answer that would take much to read."""
    parts = bytes(mark.input), bytes(mark.body)
    is_small = sum(map(len, parts)) <= SMALL
    count = _most_members(parts) if is_small else await asyncio.to_thread(_most_members, parts)
    if count > MOST_MEMBERS:
        raise Refused(413, f"what is to be stored has {count} items or members, more than {MOST_MEMBERS}: store less")


def _most_members(parts: Iterable[bytes]) -> int:
    return max(map(members_of, parts))
