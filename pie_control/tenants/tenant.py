"""Tenants: whoever pays for inferlets. Shares and quotas go by them."""

from __future__ import annotations

import math
from enum import IntEnum

from pie_control.record import Record


class ServiceClass(IntEnum):
    """What goes first. An inferlet of a lower class never takes memory or waves from one of a higher class."""

    INTERACTIVE = 0
    BATCH = 1


class Tenant(Record, frozen=True, tag=None):
    """Equal names mean the same tenant. `weight`: its share of a worker, beside the weights of the others. `max_pages`,
    `max_embeds`: what its inferlets on one host may hold together, on all workers; None: no bound but theirs.
    `http_allow`: the servers that its inferlets may send requests to; None: those that the server allows to all.
    `max_inferlets`: those that may run at a time, children included; None: no bound but the server's. `max_programs`,
    `max_stored_program_bytes`: what it may keep; None: what the server allows each tenant."""

    name: str
    weight: float = 1.0
    max_pages: int | None = None
    max_embeds: int | None = None
    http_allow: tuple[str, ...] | None = None
    max_inferlets: int | None = None
    max_programs: int | None = None
    max_stored_program_bytes: int | None = None


DEFAULT_TENANT = Tenant("default")
"""The tenant of every inferlet on a server without a file of tenants."""


MOST_PRIORITY = 10
"""Priorities are from -10 to 10. As in vLLM, the lower ones go earlier."""


class Standing(Record, frozen=True, tag=None):
    """For whom an inferlet works, in which class, and whether it may send requests to the servers that its tenant may.
    `key`: id of the key that has launched it, or its parent; "": a token, or nothing, has. `key_inferlets`: those of
    this key that may run at a time; None: no bound but those of its tenant. `priority`: what it gets of the share of
    its tenant and class, and no more than that. The server sets it, never the inferlet."""

    tenant: Tenant = DEFAULT_TENANT
    service_class: ServiceClass = ServiceClass.INTERACTIVE
    may_send: bool = True
    key: str = ""
    key_inferlets: int | None = None
    priority: int = 0

    @property
    def weight(self) -> float:
        """Its share beside other inferlets of its tenant and class: two steps of priority make it double or half."""
        return math.exp2(-self.priority / 2)


DEFAULT_STANDING = Standing()
