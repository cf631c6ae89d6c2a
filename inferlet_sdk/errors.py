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

from collections.abc import Callable, Sequence
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


LARGEST, A_NUMBER = 8 << 20, 50
"""Bytes that one call may pass, or the sandbox ends the inferlet; and what a number in a list counts as."""
MANY = 1 << 16
"""Characters of a text whose bytes are counted."""


def call(function: Callable[..., T], *arguments: Any) -> T:
    """Calls a host function; a refused call raises a `PieError`."""
    if (size := _size(arguments)) > LARGEST:
        name = getattr(function, "__name__", "the call")
        raise TooLong(
            f"{name}: one call passes at most {LARGEST} bytes, where a number in a list counts as {A_NUMBER}, and not "
            f"{size}: give less at a time"
        )
    try:
        return function(*arguments)
    except bindings.HostError as error:
        raise from_host(error) from None


def _size(arguments: Sequence[Any]) -> int:
    """Bytes of texts and lists."""
    size = 0
    for one in arguments:
        kind = type(one)
        if kind is str:
            size += len(one) if one.isascii() or len(one) < MANY else len(one.encode(errors="replace"))
        elif kind is list and one:
            size += _size(one) if type(one[0]) is str else A_NUMBER * len(one)
    return size
