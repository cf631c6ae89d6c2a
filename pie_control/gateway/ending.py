"""What the end of an inferlet means to the client whose request it served. Pure."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from ..errors import RateLimited
from ..inferlets.events import Ended
from ..inferlets.lifecycle import Status
from .refusal import Refused


class _Error(msgspec.Struct):
    message: str
    status: int = 400
    type: str | None = None
    param: str | None = None
    code: str | int | None = None


class _Refusal(msgspec.Struct):
    served_error: _Error


_decoder = msgspec.json.Decoder(_Refusal)
MARK = '"served_error"'
"""The key of a result that is an error."""

LOG = "its log says more: GET /v1/inferlets/{id}/logs"
ENDINGS: dict[str, tuple[int, str, str]] = {
    Status.FAILED: (500, "program-failed", f"the program that serves this request failed; {LOG}"),
    Status.EXCEEDED: (500, "program-exceeded", f"the program that serves this request exceeded a limit; {LOG}"),
    Status.EVICTED: (503, "overloaded", "other requests needed the memory of this one: try again later"),
    Status.LOST: (503, "worker-unavailable", "what ran this request was lost: try again"),
    Status.TERMINATED: (409, "terminated", "the inferlet that served this request was ended by a client"),
}
"""Status, code and message, by how an inferlet ended that has no result."""


def result_of(ended: Ended, refusal_today: Callable[[], RateLimited | None] = lambda: None) -> str:
    """The result of an inferlet, JSON. Raises Refused if it has none, or its result is an error. `refusal_today`: what
    its tenant is told where its budget of the day is spent, which has ended the inferlet."""
    if ended.status != Status.FINISHED:
        if ended.status == Status.EXCEEDED and (refusal := refusal_today()):
            raise Refused(refusal.status, str(refusal), "rate-limited", retry_after=refusal.retry_after)
        status, code, message = ENDINGS[ended.status]
        raise Refused(status, message.format(id=ended.inferlet), code)
    result = ended.result or "null"
    if MARK in result:
        _raise_error(result)
    return result


def _raise_error(result: str) -> None:
    try:
        error = _decoder.decode(result).served_error
    except (msgspec.DecodeError, RecursionError):
        return  # the words of a model, say
    status = error.status if 400 <= error.status < 600 else 500
    code = None if error.code is None else str(error.code)
    raise Refused(status, error.message, code, error.param, error.type or "")
