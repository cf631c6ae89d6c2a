"""Launches that inferlets ask for: on the host of the parent, of a program that its tenant has, in its standing."""

from __future__ import annotations

import asyncio
import logging

from .. import errors
from ..application.messages import LaunchChild, NotLaunched
from ..programs.library import ProgramLibrary
from ..registry.entry import Entry
from ..registry.registry import Registry
from ..services.http.trace_context import HEADER, checked
from .app_host import AppHost
from .hosts import Hosts

log = logging.getLogger(__name__)


class ChildLaunches:
    """Belongs to the thread of one event loop."""

    def __init__(self, library: ProgramLibrary, registry: Registry, hosts: Hosts) -> None:
        self._library = library
        self._registry = registry
        self._hosts = hosts
        self._tasks: set[asyncio.Task[None]] = set()

    def take(self, host: AppHost, message: LaunchChild) -> None:
        """Launches a child, or tells its parent why not. Its program may have to be loaded first."""
        parent = host.entries.get(message.parent)
        if parent is not None:
            task = asyncio.get_running_loop().create_task(self._launch(host, parent, message))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _launch(self, host: AppHost, parent: Entry, message: LaunchChild) -> None:
        try:
            with host.launching():
                reference = message.program or parent.program.hash
                program = await self._library.find(reference, host.programs, parent.program.owner)
            if host.entries.get(message.parent) is not parent:
                return  # it has ended meanwhile
            if not host.load().has_room:
                raise errors.Overloaded(
                    "the inferlets of this host hold as much memory as they may together: try again later"
                )
            entry = self._registry.new(program, self._hosts.post, self._hosts.tell_room, parent.standing)
        except Exception as error:  # whatever it is, the parent waits for an answer
            host.post(NotLaunched(message.parent, message.child, _as_call_error(error)))
            return
        entry.parent = parent.id
        entry.traceparent = checked(message.environment.get(HEADER, ""))  # of the span within which it was asked for
        self._hosts.launch(host, entry, message.arguments, message.environment, {}, message.parent, message.child)


def _as_call_error(error: Exception) -> errors.CallError:
    match error:
        case errors.UnknownName():
            return errors.NotFound(str(error))
        case errors.Overloaded() | errors.HostUnavailable():
            return errors.Exhausted(str(error))
        case OSError():
            log.error("a child could not be launched: %s", error)
            return errors.Exhausted("the server cannot read the program now: try again later")
        case errors.ClientError():
            return errors.InvalidArgument(str(error))
    log.error("a child could not be launched", exc_info=error)
    return errors.InvalidState(f"the child could not be launched ({error!r}): this is a defect of the server")
