"""What the modules of the host API share: the inferlet as they see it, and its handles."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic as clock
from typing import Any, TypeVar

from ..engine.model import Model
from ..errors import InvalidArgument, NotFound
from ..inferlets.inferlet import Inferlet
from ..scheduling import Account

__all__ = ["Queue", "account_of", "clock", "handle_of", "issue", "model_of", "queue_of"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Queue:
    """What a queue number of an inferlet stands for."""

    account: Account
    number: int
    model: Model


class Session:
    """What an inferlet holds at one model."""

    __slots__ = ("account", "model")

    def __init__(self, account: Account, model: Model) -> None:
        self.account = account
        self.model = model

    def holdings(self) -> tuple[int, int]:
        usage = self.account.usage()
        return usage.pages, usage.embeds


def model_of(inferlet: Inferlet, name: str) -> Model:
    """The model with this name; raises NotFound."""
    model = inferlet.models.get(name)
    if model is None:
        known = ", ".join(inferlet.models) or "none"
        raise NotFound(f"there is no model {name!r}; available-models gives: {known}")
    return model


def account_of(inferlet: Inferlet, model: Model) -> Account:
    """What the inferlet holds at a model, opened at the first use; raises WorkerError."""
    session = inferlet.sessions.get(model.name)
    if session is None:
        session = Session(model.open(inferlet.number, inferlet.created), model)
        inferlet.sessions[model.name] = session
    return session.account


def queue_of(inferlet: Inferlet, number: int) -> Queue:
    """The queue with this number; raises NotFound."""
    queue = inferlet.queues.get(number)
    if queue is None:
        raise NotFound(f"there is no queue {number}: create one with create-queue")
    return queue


def handle_of(inferlet: Inferlet, number: int, kind: type[T]) -> T:
    """The sampler or detokenizer with this number; raises NotFound, InvalidArgument."""
    value = inferlet.handles.get(number)
    if value is None:
        raise NotFound(f"there is no {kind.__name__.lower()} {number}")
    if not isinstance(value, kind):
        raise InvalidArgument(f"handle {number} is a {type(value).__name__.lower()}, not a {kind.__name__.lower()}")
    return value


def issue(inferlet: Inferlet, call: Callable[..., Any], *arguments: Any) -> int:
    """Makes a call that is answered by a future, `call(*arguments, future, now)`; returns the future."""
    future = inferlet.futures.new()
    try:
        call(*arguments, future, clock())
    except BaseException:
        inferlet.futures.forget(future)
        raise
    return future
