"""What the clients of one tenant can do: its programs, blobs and inferlets. Another tenant's do not exist for it."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Awaitable, Callable, Mapping, Sequence
from time import monotonic, time
from typing import TypeVar

from msgspec.structs import replace

from .config import ServerConfig
from .engine.app_host import AppHost
from .engine.hosts import Hosts
from .engine.model import Model
from .errors import BadRequest, Overloaded, RateLimited, WorkerUnavailable
from .host_memory import TenantBytes
from .inferlets.events import Event, LogLine
from .inferlets.lifecycle import Status
from .programs.library import ProgramLibrary
from .programs.store import Program, ProgramInfo
from .registry.blobs import BlobStore
from .registry.entry import Entry, InferletInfo
from .registry.holdings import KeyHoldings, held_by_keys
from .registry.registry import Registry
from .tenants.audit import AuditTrail
from .tenants.budgets import seconds_of_day_left
from .tenants.meters import Meter, Meters
from .tenants.tenant import DEFAULT_STANDING, Standing
from .texts import byte_size, cut_middle

MOST_LISTED = 1000
"""Characters of a result in a list of inferlets, where a longer one is left out, and bytes of an error, which is cut:
a list of all would be as large as all that is kept, for each client that asks for it."""
MOST_TEXTS = 16_384
"""Arguments, and names and texts of the environment, of a launch: as many as the items of a list that a call passes."""
HOSTS_TRIED = 3
"""Hosts that one after the other prepare a program, if each of them ends."""

Done = TypeVar("Done")


class TenantApi:
    """Programs and inferlets of one tenant. All methods belong to the thread of one event loop; their errors are those
    of `pie_control.errors`."""

    def __init__(
        self,
        config: ServerConfig,
        library: ProgramLibrary,
        registry: Registry,
        hosts: Hosts,
        models: Mapping[str, Model],
        meters: Meters,
        audit: AuditTrail,
        blobs: TenantBytes,
        standing: Standing = DEFAULT_STANDING,
    ) -> None:
        """`blobs`: the memory of those of all tenants."""
        self.config = config
        self.standing = standing
        self._tenant = standing.tenant.name
        self._library = library
        self._registry = registry
        self._hosts = hosts
        self._models = models
        self._meters = meters
        self.audit = audit
        self._blobs = BlobStore(config.limits.max_blob_bytes, blobs, self._tenant)
        self._bound_programs()

    def _bound_programs(self) -> None:
        tenant = self.standing.tenant
        self._library.bound(tenant.name, tenant.max_programs, tenant.max_stored_program_bytes)

    def use(self, standing: Standing) -> None:
        """Launches in this standing from now on, and so do the tenant's inferlets that run."""
        self.standing = replace(
            standing,
            may_send=self.standing.may_send,
            key=self.standing.key,
            key_inferlets=self.standing.key_inferlets,
        )
        self._registry.use(standing)
        self._bound_programs()

    def of_key(self, key: str, may_send: bool, most: int | None) -> TenantApi:
        """This API for a client that shows a key. `may_send`: whether its inferlets may send requests to other
        servers; `most`: how many may run at a time."""
        limited = copy.copy(self)
        limited.standing = replace(self.standing, may_send=may_send, key=key, key_inferlets=most)
        return limited

    def of_priority(self, priority: int) -> TenantApi:
        """This API for what goes earlier (below 0) or later (above 0) than others of this tenant."""
        ordered = copy.copy(self)
        ordered.standing = replace(self.standing, priority=priority)
        return ordered

    @property
    def meter(self) -> Meter:
        """What counts what its inferlets spend."""
        return self._meters.of(self.standing)

    def check_budget(self) -> None:
        """Raises RateLimited if it may launch nothing now, since what it may spend is spent."""
        try:
            self.meter.check(monotonic(), seconds_of_day_left(time()))
        except RateLimited:
            self.note("refused", "rate-limited")
            raise

    def refusal_today(self) -> RateLimited | None:
        """What it is told if a budget of the day is spent."""
        return self.meter.refusal_today(seconds_of_day_left(time()))

    def note(self, action: str, subject: str) -> None:
        """The tenant, or who shows the key, did something."""
        self.audit.note(self._tenant, self.standing.key, action, subject)

    # ---- programs ----

    async def upload(self, data: bytes, name: str = "", file: str = "") -> ProgramInfo:
        """Stores a program and makes it ready to launch. A name stands for it from now on; `file`, what its file is
        called, is only shown. Raises BadProgram, BadRequest (a name that cannot be), StorageFull, Overloaded,
        HostUnavailable."""
        info = await on_one(
            self._hosts, lambda host: self._library.upload(data, name, host.programs, self._tenant, file)
        )
        self.note("upload", f"{info.program} {info.name}")
        return info

    def programs(self) -> tuple[ProgramInfo, ...]:
        """All programs that the tenant can launch."""
        return self._library.all(self._tenant)

    def remove_program(self, program: str) -> ProgramInfo:
        """Deletes a program (hash, unique prefix of it, or name); its inferlets go on. Raises UnknownName,
        BadRequest."""
        info = self._library.remove(program, self._tenant)
        self.note("delete", f"{info.program} {info.name}")
        return info

    # ---- blobs ----

    async def upload_blob(self, data: bytes) -> str:
        """Keeps bytes for a while, for `launch` and `send`; returns their content hash. Raises StorageFull,
        Overloaded."""
        return await self._blobs.put(data)

    # ---- inferlets ----

    async def launch(
        self,
        program: str,
        arguments: Sequence[str] = (),
        *,
        environment: Mapping[str, str] | None = None,
        blobs: Mapping[str, str] | None = None,
        contents: Mapping[str, bytes] | None = None,
        owner: str = "",
        listener: Callable[[Event], None] | None = None,
    ) -> Entry:
        """Starts an inferlet of a program (hash, unique prefix of it, or name). `blobs`: hashes of uploaded ones, by
        the names under which the inferlet knows them; `contents`: further ones themselves. `owner`: who keeps the
        program, by default the tenant. `listener` hears its events on the loop's thread and must not block. Raises
        UnknownName, BadRequest, Overloaded, RateLimited; WorkerUnavailable if no model has a worker, now or soon,
        HostUnavailable if no host runs. A launch waits for no model."""
        self._registry.check_open()
        self.check_budget()
        self._check_launch(arguments, environment or {})
        found_blobs = self._blobs.find(blobs or {}) | dict(contents or {})
        host, found = await on_one(self._hosts, lambda host: self._find(host, program, owner))
        if all(model.is_down for model in self._models.values()):
            raise WorkerUnavailable("; ".join(model.why_down() for model in self._models.values()))
        self.check_budget()  # others may have spent it meanwhile
        entry = self._registry.new(found, self._hosts.post, self._hosts.tell_room, self.standing)
        self.meter.requests(monotonic())
        if self.standing.key:
            self.note("launch", f"{found.hash} {found.title}")
        self._hosts.launch(host, entry, arguments, environment or {}, found_blobs)
        if listener is not None:
            entry.attach(listener)
        return entry

    async def _find(self, host: AppHost, program: str, owner: str) -> tuple[AppHost, Program]:
        with host.launching():
            return host, await self._library.find(program, host.programs, owner or self._tenant)

    def _check_launch(self, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        texts = (*arguments, *environment.keys(), *environment.values())
        if len(texts) > MOST_TEXTS:
            raise BadRequest(f"arguments and environment have {len(texts)} texts, more than {MOST_TEXTS}: send a list")
        size, limit = sum(map(byte_size, texts)), self.config.limits.max_message_bytes
        if size > limit:
            raise BadRequest(f"arguments and environment have {size} bytes, more than {limit}: send them later")

    def send(self, id: str, text: str, blobs: Mapping[str, str] | None = None) -> None:
        """Sends a message to an inferlet. `blobs`: hashes of uploaded ones, by the names under which the inferlet gets
        them. Raises UnknownName, BadRequest, Conflict, Overloaded."""
        self._registry.get(id, self._tenant).send(text, self._blobs.find(blobs or {}))

    def inferlet(self, id: str) -> Entry:
        """A running or recently ended inferlet; raises UnknownName."""
        return self._registry.get(id, self._tenant)

    def logs(self, id: str, after: int = 0, *, of_all: bool = False) -> tuple[LogLine, ...]:
        """The log of an inferlet, oldest line first, behind the line of a number; `of_all`: of any tenant's, which is
        noted. Raises UnknownName."""
        entry = self._registry.get(id, None if of_all else self._tenant)
        if entry.standing.tenant.name != self._tenant:
            self.note("logs", id)
        return entry.logs(after)

    def inferlets(self) -> tuple[InferletInfo, ...]:
        """Running and recently ended inferlets, as far as is known without their hosts."""
        return tuple(entry.info() for entry in self._registry.all(self._tenant))

    def held_by_keys(self, *, of_all: bool) -> tuple[KeyHoldings, ...]:
        """What the inferlets of each key of this tenant hold, or of all tenants."""
        return held_by_keys(self._registry.all(None if of_all else self._tenant))

    async def look_at_all(self, *, of_all: bool = False) -> tuple[InferletInfo, ...]:
        """All inferlets of this tenant, with what each waits for: their hosts are asked. Long results are left out.
        `of_all`: those of all tenants, without what others have answered."""
        waits = await self._hosts.ask_waits()
        found = (entry.info(waits.get(entry.number)) for entry in self._registry.all(None if of_all else self._tenant))
        return tuple(listed(one) if one.tenant == self._tenant else hidden(one) for one in found)

    async def look_at(self, id: str, stack: bool = False) -> InferletInfo:
        """An inferlet, with what it waits for. `stack`: soon its log says where its tasks are, unless it computes, or
        waits for the model alone. Raises UnknownName."""
        entry = self.inferlet(id)
        waits = await self._hosts.ask_waits(entry, stack)
        return entry.info(waits.get(entry.number))

    def terminate(self, id: str, reason: str) -> None:
        """Ends an inferlet, soon if its host is another process; nothing happens if it has ended. Raises
        UnknownName."""
        self._hosts.stop(self._registry.get(id, self._tenant), Status.TERMINATED, reason)


def listed(info: InferletInfo) -> InferletInfo:
    """An inferlet as a list has it."""
    if max(len(info.result or ""), len(info.error or "")) <= MOST_LISTED:
        return info
    result = None if len(info.result or "") > MOST_LISTED else info.result
    error = None if info.error is None else cut_middle(info.error, MOST_LISTED)
    return dataclasses.replace(info, result=result, error=error)


def hidden(info: InferletInfo) -> InferletInfo:
    """An inferlet as other tenants may see it."""
    return dataclasses.replace(info, result=None, error=None)


async def on_one(hosts: Hosts, act: Callable[[AppHost], Awaitable[Done]]) -> Done:
    """Does something on a host, and on another one if that ends meanwhile. Raises what `hosts.place` and `act` do."""
    for left in reversed(range(HOSTS_TRIED)):
        host = await hosts.place()
        try:
            return await act(host)
        except Overloaded:
            if host.load().serves or not left:
                raise
    raise AssertionError("the last try returns or raises")
