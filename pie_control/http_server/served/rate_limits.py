"""What answers say of budgets: headers as those of OpenAI's API, and of Anthropic's for its routes."""

from __future__ import annotations

from datetime import UTC, datetime

from pie_control.tenants.meters import Meter

from ..failures import MESSAGES

Headers = list[tuple[bytes, bytes]]


def rate_limit_headers(meter: Meter, path: str, now: float, wall: float) -> Headers:
    """`now`: of the clock of the meter; `wall`: since the epoch. Both are in seconds."""
    found: Headers = []
    for what, limit in meter.limits(now).items():
        if path.startswith(MESSAGES):
            reset = datetime.fromtimestamp(wall + limit.reset_seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            told = {f"{what}-limit": limit.limit, f"{what}-remaining": limit.remaining, f"{what}-reset": reset}
            found += [(f"anthropic-ratelimit-{name}".encode(), str(value).encode()) for name, value in told.items()]
        else:
            reset = f"{round(limit.reset_seconds, 3):g}s"  # as OpenAI writes it: 1.25s, 0s
            told = {"limit": limit.limit, "remaining": limit.remaining, "reset": reset}
            found += [(f"x-ratelimit-{name}-{what}".encode(), str(value).encode()) for name, value in told.items()]
    return found
