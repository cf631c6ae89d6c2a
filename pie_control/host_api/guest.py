"""An inferlet as its host functions see it: what they keep for it at models, and its handles."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from ..calls.core import create_queue, destroy_queue
from ..engine.model import Model
from ..errors import Cancelled, InvalidArgument, NotFound, QuotaExceeded
from ..inferlets.inferlet import Inferlet
from ..programs.languages.python_source import SourceText
from ..resources.address_space import AddressSpace
from ..sandbox.fibers import Instance
from ..sandbox.wasi import WasiState

T = TypeVar("T")

MAX_HANDLES = 4096
"""Samplers and detokenizers of one inferlet: two for each generation that is under way."""


class Guest:
    """The first argument of every host function. Owns an instance and all that it holds at models."""

    __slots__ = (
        "_handles",
        "_models_by_queue",
        "_next_handle",
        "_next_queue",
        "_spaces",
        "futures",
        "inferlet",
        "instance",
        "models",
        "queues",
        "source",
        "wasi",
    )

    def __init__(self, inferlet: Inferlet, models: Mapping[str, Model]) -> None:
        self.inferlet = inferlet
        self.futures = inferlet.futures
        self.models = models
        self.instance: Instance
        self.source: SourceText | None = None  # of a Python program
        self.wasi = WasiState()
        self.queues: dict[int, AddressSpace] = {}
        self._models_by_queue: dict[int, Model] = {}
        self._spaces: dict[str, AddressSpace] = {}
        self._next_queue = 0
        self._handles: dict[int, object] = {}
        self._next_handle = 1

    # ---- for the sandbox, and for functions that the compiler of programs calls, too ----

    @property
    def arguments(self) -> list[str]:
        return self.inferlet.arguments

    @property
    def environment(self) -> dict[str, str]:
        return self.inferlet.environment

    def put_result(self, text: str) -> None:
        self.inferlet.put_result(text)

    def write_output(self, stream: str, data: bytes) -> None:
        self.inferlet.write_output(stream, data)

    def sleep_until(self, deadline_ns: int, value: object) -> None:
        self.inferlet.sleep_until(deadline_ns, value)

    # ---- models and queues ----

    def model(self, name: str) -> Model:
        """The model with this name; raises NotFound."""
        model = self.models.get(name)
        if model is None:
            known = ", ".join(self.models) or "none"
            raise NotFound(f"there is no model {name!r}; available-models gives: {known}")
        return model

    def _space_at(self, model: Model) -> AddressSpace:
        """What the inferlet holds at a model: it is placed on one of its workers at the first use. Raises
        WorkerError."""
        space = self._spaces.get(model.name)
        if space is None:
            space = self._spaces[model.name] = model.open(
                self.inferlet.number, self.inferlet.started, self.inferlet.standing
            )
        return space

    def create_queue(self, name: str) -> int:
        """Number of a new queue of a model. Raises NotFound, QuotaExceeded, WorkerError."""
        model = self.model(name)
        space = self._space_at(model)
        number = self._next_queue + 1
        create_queue.issue(space, number)
        self._next_queue = number
        self.queues[number] = space
        self._models_by_queue[number] = model
        return number

    def destroy_queue(self, number: int) -> None:
        """Raises NotFound."""
        destroy_queue.issue(self.space(number), number)
        del self.queues[number], self._models_by_queue[number]

    def space(self, queue: int) -> AddressSpace:
        """What a queue belongs to; raises NotFound."""
        space = self.queues.get(queue)
        if space is None:
            raise NotFound(f"there is no queue {queue}: the first argument is the number of a queue, from create-queue")
        return space

    def model_of(self, queue: int) -> Model:
        """The model of a queue; raises NotFound."""
        self.space(queue)
        return self._models_by_queue[queue]

    # ---- handles ----

    def add_handle(self, value: object) -> int:
        """Number of a new handle (sampler, detokenizer); raises QuotaExceeded."""
        if len(self._handles) >= MAX_HANDLES:
            raise QuotaExceeded(f"{MAX_HANDLES} samplers and detokenizers exist: destroy some first")
        number = self._next_handle
        self._next_handle += 1
        self._handles[number] = value
        return number

    def handle(self, number: int, kind: type[T]) -> T:
        """The sampler or detokenizer with this number; raises NotFound, InvalidArgument."""
        value = self._handles.get(number)
        if value is None:
            raise NotFound(f"there is no {kind.__name__.lower()} {number}")
        if not isinstance(value, kind):
            raise InvalidArgument(f"handle {number} is a {type(value).__name__.lower()}, not a {kind.__name__.lower()}")
        return value

    def drop_handle(self, number: int, kind: type[object]) -> None:
        """Raises as `handle`."""
        self.handle(number, kind)
        del self._handles[number]

    # ---- holdings ----

    def usage(self) -> tuple[int, int]:
        """Pages and embeds, over all models."""
        held = [space.usage() for space in self._spaces.values()]
        return sum(one.pages for one in held), sum(one.embeds for one in held)

    def release(self) -> None:
        """Gives back what the inferlet holds at models. Idempotent."""
        for name, space in self._spaces.items():
            space.end(Cancelled("the inferlet has ended"))
            self.models[name].release(self.inferlet.number)
        self._spaces.clear()
        self.queues.clear()
        self._models_by_queue.clear()
        self._handles.clear()
