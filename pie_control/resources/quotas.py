"""What one inferlet may hold, and what it holds."""

from __future__ import annotations

from dataclasses import dataclass

from pie_control.errors import QuotaExceeded

from .kinds import Resource


@dataclass(frozen=True, slots=True)
class Quota:
    """Limits of one inferlet on one model."""

    pages: int = 1 << 20
    embeds: int = 1 << 16
    queues: int = 1024
    commands: int = 1 << 16  # issued and not yet dispatched

    def limit(self, resource: Resource) -> int:
        """Addresses of a kind of memory."""
        limit: int = getattr(self, resource.key)
        return limit


@dataclass(frozen=True, slots=True)
class Usage:
    """What one inferlet holds now (addresses it owns, whether or not memory is bound yet)."""

    pages: int
    embeds: int
    queues: int
    commands: int


def check_quota(held: int, added: int, limit: int, what: str, advice: str) -> None:
    """Raises QuotaExceeded if `added` more would exceed `limit`."""
    if held + added > limit:
        raise QuotaExceeded(f"{held} {what} held and {added} more asked for, the limit is {limit}; {advice}")
