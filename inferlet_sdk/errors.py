"""Errors of the API calls, one class for each code of types.wit.

PieError
├── InvalidArgument   malformed or out of range
│   └── TooLong       a text with more tokens than the model takes, or one call
├── NotFound          a handle or name that the inferlet does not own or that does not exist
├── InvalidState      no free slot, an embed that was never filled, use after close
├── QuotaExceeded     a limit of this inferlet
├── Exhausted         the whole pool is too small
├── Unsupported       the model lacks the trait, or the server the function
│   └── NotAllowed    the operator of the server does not allow it
├── RequestFailed     a server outside could not be reached, or answered what cannot be read
│   └── TimedOut      it took longer than it may
├── Cancelled         the operation was cancelled
└── WorkerFailed      the inference worker failed; the command had no effect
    └── Busy          nothing is wrong: it may be issued again in a moment
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from inferlet_sdk import bindings

T = TypeVar("T")


class PieError(Exception):
    """A refused API call. `code` says why, like "not-found"; `message` says what to do.

    A code that this SDK does not know is a plain `PieError` with that code.
    """

    code = "invalid-argument"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class InvalidArgument(PieError):
    code = "invalid-argument"


class TooLong(InvalidArgument):
    code = "too-long"


class NotFound(PieError):
    code = "not-found"


class InvalidState(PieError):
    code = "invalid-state"


class QuotaExceeded(PieError):
    code = "quota-exceeded"


class Exhausted(PieError):
    code = "exhausted"


class Unsupported(PieError):
    code = "unsupported"


class NotAllowed(Unsupported):
    code = "not-allowed"


class RequestFailed(PieError):
    code = "request-failed"


class TimedOut(RequestFailed):
    code = "timed-out"


class Cancelled(PieError):
    code = "cancelled"


class WorkerFailed(PieError):
    code = "worker-failed"


class Busy(WorkerFailed):
    code = "busy"


_BY_CODE = {kind.code: kind for error in PieError.__subclasses__() for kind in (error, *error.__subclasses__())}


def from_host(error: Exception) -> Exception:
    """The `PieError` for the error of a host call; returns any other error unchanged."""
    record = getattr(error, "value", None)
    code = getattr(record, "code", None)
    if record is None or code is None:
        return error
    known = _BY_CODE.get(code)
    if known is not None:
        return known(record.message)
    unknown = PieError(record.message)
    unknown.code = code
    return unknown


def call(function: Callable[..., T], *arguments: Any) -> T:
    """Calls a host function; a refused call raises a `PieError`."""
    try:
        return function(*arguments)
    except bindings.HostError as error:
        raise from_host(error) from None
