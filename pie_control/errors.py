"""Errors of the control layer, split by whose fault they are.

PieError
├── CallError              the inferlet's fault: its API call is refused; its `error` record has code and message
│   ├── InvalidArgument    malformed or out of range
│   │   └── TooLong        a text with more tokens than the model takes, or one call
│   ├── NotFound           a handle or name that the inferlet does not own or that does not exist
│   ├── InvalidState       full page, embed never filled, future not done
│   │   └── RequestFailed  a server outside could not be reached, or answered what cannot be read
│   │       └── TimedOut   it took longer than it may
│   ├── QuotaExceeded      a limit of this inferlet
│   ├── Exhausted          the whole pool is too small
│   ├── Unsupported        no such trait or function here
│   │   └── NotAllowed     the operator does not allow it
│   ├── Cancelled          the operation was cancelled
│   └── WorkerError        the worker failed; the command had no effect
│       └── Busy           it may be issued again in a moment
├── ClientError            the client's fault: HTTP 4xx, exit code 2 of the command line
│   ├── BadRequest         400
│   ├── Unauthorized       401, no token, or one that no tenant has
│   ├── Forbidden          403, the tenant may not do this
│   ├── UnknownName        404, no such program, inferlet or model
│   ├── BadProgram         422, a program that is neither Python nor a component of our world
│   ├── BadAdapter         422, an adapter that is unreadable, or does not fit the model or the memory
│   ├── StorageFull        413, the tenant keeps as many programs, or bytes of them, as it may; or the disk is full
│   ├── Conflict           409, the inferlet has ended
│   └── Overloaded         503, too many inferlets
│       └── TooManyRequests 429, as many of the tenant or client as it may have at a time
│           └── RateLimited 429, the tenant or the key has spent its budget
├── InferletEnded          an inferlet ended without a result: why (`InferletStatus`), its message or traceback
├── WorkerUnavailable      503: the worker did not start or died; tells what it said
├── HostUnavailable        503: an application host did not start; tells what it said
├── StateUnavailable       503: what survives the server cannot be read; tells why
└── ConfigError            the operator's fault: a wrong option or file; exit code 2
"""

from __future__ import annotations


class PieError(Exception):
    """Base of all errors that this package raises on purpose."""


class CallError(PieError):
    """An API call is refused. types.wit lists the codes."""

    code = "invalid-argument"


class InvalidArgument(CallError):
    code = "invalid-argument"


class TooLong(InvalidArgument):
    code = "too-long"


class NotFound(CallError):
    code = "not-found"


class InvalidState(CallError):
    code = "invalid-state"


class QuotaExceeded(CallError):
    code = "quota-exceeded"


class Exhausted(CallError):
    code = "exhausted"


class Unsupported(CallError):
    code = "unsupported"


class NotAllowed(Unsupported):
    code = "not-allowed"


class RequestFailed(InvalidState):
    code = "request-failed"


class TimedOut(RequestFailed):
    code = "timed-out"


class Cancelled(CallError):
    code = "cancelled"


class WorkerError(CallError):
    code = "worker-failed"


class Busy(WorkerError):
    code = "busy"


class ClientError(PieError):
    """The client's fault. `status` is the HTTP status."""

    status = 400


class BadRequest(ClientError):
    status = 400


class Unauthorized(ClientError):
    status = 401


class Forbidden(ClientError):
    status = 403


class UnknownName(ClientError):
    status = 404


class BadProgram(ClientError):
    status = 422


class BadAdapter(ClientError):
    status = 422


class StorageFull(ClientError):
    status = 413


class Conflict(ClientError):
    status = 409


class Overloaded(ClientError):
    status = 503


class TooManyRequests(Overloaded):
    status = 429


class RateLimited(TooManyRequests):
    """`retry_after`: seconds after which it makes sense to try again; clients of a session find them in the message."""

    def __init__(self, message: str, retry_after: int = 1) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class InferletEnded(PieError):
    """An inferlet ended without a result."""

    def __init__(self, status: str, message: str) -> None:
        super().__init__(message or status)
        self.status = status
        self.message = message


class WorkerUnavailable(PieError):
    """The worker did not start or died."""

    status = 503


class HostUnavailable(PieError):
    """An application host did not start."""

    status = 503


class StateUnavailable(PieError):
    """What survives the server cannot be read."""

    status = 503


class ConfigError(PieError):
    """A wrong option, environment variable or file of the operator."""
