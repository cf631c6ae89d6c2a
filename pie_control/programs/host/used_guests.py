"""Python guests that have run their program, and wait for another launch of it by the same tenant.

Programs allow it with `@inferlet(reuse=True)`. Such a launch needs no new instance, copies no page of memory, and finds
the interpreter warm. An instance never serves two tenants, nor two programs.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from ...sandbox.fibers import Instance

REST_SECONDS = 60.0
"""An instance that nobody has wanted for as long is freed."""
MOST_GROWN = 8 << 20
"""Bytes by which an instance may grow over its launches, of which the first one copies 3 MB of pages if the instance
has not rehearsed."""


class User(NamedTuple):
    """Who has used an instance; those of equal users are alike. `program`: a hash."""

    tenant: str
    program: str


class UsedGuests:
    """At most `most` instances; the one that was used last is taken first."""

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._clock = clock
        self._kept: dict[Instance, tuple[User, float]] = {}  # since when; the one used longest ago comes first
        self._by_user: dict[User, list[Instance]] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, instance: Instance, user: User, grown: int) -> bool:
        """Keeps an instance that waits for a program, and has grown by so many bytes in its last launch. False if it is
        too large, or none is kept: then it is still the caller's. One that is kept has no owner."""
        instance.grown += max(0, grown)
        if instance.grown > MOST_GROWN or not self._most:
            return False
        if len(self._kept) >= self._most:
            self.drop_one()
        instance.owner = None  # whose inferlet has ended, and may have been launched with much
        self._kept[instance] = user, self._clock()
        self._by_user.setdefault(user, []).append(instance)
        return True

    def take(self, user: User) -> Instance | None:
        """One of this user's, if there is one."""
        found = self._by_user.get(user)
        return self._remove(found[-1]) if found else None

    def _remove(self, instance: Instance) -> Instance:
        user, _ = self._kept.pop(instance)
        self._by_user[user].remove(instance)
        if not self._by_user[user]:
            del self._by_user[user]
        return instance

    def drop_one(self) -> bool:
        """Frees the one that was used longest ago; False if there is none."""
        for oldest in self._kept:
            self._remove(oldest).close()
            return True
        return False

    def drop_unused(self) -> bool:
        """Frees one that has rested for too long; False if there is none."""
        since = next((since for _, since in self._kept.values()), None)
        return since is not None and self._clock() - since >= REST_SECONDS and self.drop_one()

    def forget(self, program: str) -> None:
        """Frees those of a program."""
        for instance in [one for one, (user, _) in self._kept.items() if user.program == program]:
            self._remove(instance).close()

    def close(self) -> None:
        """Frees all. Idempotent."""
        while self.drop_one():
            pass
