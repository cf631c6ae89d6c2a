"""What a served program refuses, as the error of its route."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from inferlet_sdk.errors import (
    Exhausted,
    InvalidArgument,
    NotFound,
    PieError,
    QuotaExceeded,
    RequestFailed,
    TooLong,
    Unsupported,
    WorkerFailed,
)
from inferlet_sdk.traits import set_result

INVALID, SERVER = "invalid_request_error", "server_error"

_STATUSES: tuple[tuple[type[PieError], int], ...] = (
    (WorkerFailed, 503),
    (Exhausted, 503),
    (InvalidArgument, 400),
    (NotFound, 400),
    (QuotaExceeded, 400),
    (RequestFailed, 400),
    (Unsupported, 400),
)


class Refused(Exception):
    """A request that cannot be served as it is. `param` names the field that is at fault."""

    def __init__(self, message: str, param: str | None = None, *, status: int = 400, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.status = status
        self.code = code

    @property
    def value(self) -> dict[str, Any]:
        """The result of a program that has refused its request: the server makes the dialect's error of it."""
        kind = INVALID if self.status < 500 else SERVER
        told = {"status": self.status, "type": kind, "message": self.message, "param": self.param, "code": self.code}
        return {"served_error": told}


def too_long(message: str, param: str | None = None) -> Refused:
    """The refusal of a prompt that is longer than the model's context."""
    return Refused(message, param, code="context_length_exceeded")


def refusal_of(error: PieError, param: str | None = None) -> Refused | None:
    """The refusal that an error of the API stands for; None: it is a fault of the program."""
    if isinstance(error, TooLong):
        return too_long(error.message, param)
    status = next((status for kind, status in _STATUSES if isinstance(error, kind)), None)
    return None if status is None else Refused(error.message, param, status=status, code=error.code)


@contextmanager
def of_field(param: str) -> Iterator[None]:
    """What the API refuses within is the fault of a field."""
    try:
        yield
    except PieError as error:
        refused = refusal_of(error, param)
        if refused is None:
            raise
        raise refused from None


Main = Callable[[Any], Awaitable[Any]]


def served(main: Main) -> Main:
    """Marks the `main` of a served program: what it refuses becomes its result. Other exceptions are faults of the
    program, and end it. An instance that ran out of memory serves no later launch, whatever was left unfinished in
    it: the program ends within the call, rather than returning from it."""

    async def answer(args: Any) -> Any:
        try:
            return await main(args)
        except Refused as refused:
            return refused.value
        except MemoryError:
            message = "the request is larger than the memory of one request: send less"
            set_result(Refused(message, code="too_large").value)
            raise SystemExit from None
        except PieError as error:
            refused_for = refusal_of(error)
            if refused_for is None:
                raise
            return refused_for.value

    return answer
