"""An inferlet as its host functions see it: what they keep for it at models, and its handles."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from ..calls.core import create_queue, destroy_queue
from ..calls.exports.sharing import cancel_fetch, fetched
from ..calls.fused.matching import Matcher
from ..config import InferletLimits
from ..errors import Cancelled, InvalidArgument, NotFound, QuotaExceeded, Unsupported, WorkerError
from ..images.reader import ImageReader
from ..inferlets.blobs import Blob
from ..inferlets.inferlet import Inferlet
from ..inferlets.model import ModelView
from ..inferlets.relations.children import Nursery
from ..inferlets.relations.topics import Topics
from ..programs.program_host import SourceText
from ..resources.address_space import AddressSpace
from ..resources.quotas import Quota
from ..sandbox.fibers import Instance
from ..sandbox.wasi import WasiState
from ..services.grammars import GrammarMatcher
from ..services.http.outbound import HttpClient, Outbound
from .limits.pending import PendingBytes
from .traits import refusals

T = TypeVar("T")

MAX_HANDLES = 4096
"""Samplers, detokenizers, matchers, responses, images and the like of one inferlet: three for each generation that is
under way."""


@dataclass(frozen=True, slots=True)
class Place:
    """What the inferlet has at one model."""

    model: ModelView
    space: AddressSpace
    refusals: Mapping[str, str]  # of calls that the model does not implement, by name with underscores


@dataclass(frozen=True, slots=True)
class Reach:
    """By what the inferlets of a host reach beyond themselves."""

    http: HttpClient
    topics: Topics
    nursery: Nursery
    images: ImageReader


class Guest:
    """The first argument of every host function. Owns an instance and all that it holds at models."""

    __slots__ = (
        "_closes",
        "_handles",
        "_next_handle",
        "_outbound",
        "_places",
        "arguments",
        "futures",
        "has_source",
        "inferlet",
        "instance",
        "models",
        "pending",
        "queues",
        "reach",
        "source",
        "wasi",
    )

    def __init__(self, inferlet: Inferlet, models: Mapping[str, ModelView], reach: Reach) -> None:
        self.inferlet = inferlet
        self.arguments = inferlet.launched.arguments
        self.reach = reach
        self._outbound: Outbound | None = None
        self.futures = inferlet.waits.futures
        self.pending = PendingBytes(inferlet.limits.max_pending_bytes, inferlet.waits.futures)
        self.models = models
        self.instance: Instance
        self.source: SourceText | None = None  # of a Python program
        self.has_source = False  # the instance has it
        self.wasi = WasiState()
        self.queues: dict[int, Place] = {}
        self._places: dict[str, Place] = {}
        self._handles: dict[int, object] = {}
        self._closes: dict[int, Callable[[], None]] = {}  # what the drop of a handle does beside
        self._next_handle = 1

    # ---- for the sandbox, and for functions that the compiler of programs calls, too ----

    @property
    def environment(self) -> dict[str, str]:
        return self.inferlet.environment

    def put_result(self, text: str) -> None:
        self.inferlet.put_result(text)

    def write_output(self, stream: str, data: bytes) -> None:
        self.inferlet.mail.sender.write(stream, data)

    def sleep_until(self, deadline_ns: int, value: object) -> None:
        self.inferlet.waits.sleep_until(deadline_ns, value)

    # ---- models and queues ----

    def model(self, name: str) -> ModelView:
        """The model with this name; raises NotFound."""
        model = self.models.get(name)
        if model is None:
            known = ", ".join(self.models) or "none"
            raise NotFound(f"there is no model {name!r}; this server has {known}, others by another --model")
        return model

    def _place_at(self, model: ModelView) -> Place:
        """Its address space is made at the first use. Raises WorkerError."""
        place = self._places.get(model.name)
        if place is None:
            one = self.inferlet
            kin = reversed([*one.kin.lineage()]) if one.parent else ()
            lineage = [(each.number, quota_of(each.limits)) for each in kin]  # the root first
            try:
                space = model.open(one.number, one.launched.standing, lineage)
            except WorkerError as error:
                one.no_worker = str(error)
                raise
            self.pending.spaces.append(space)
            place = self._places[model.name] = Place(model, space, refusals(model.description))
        return place

    def create_queue(self, name: str) -> int:
        """A handle of a new queue of a model. Raises NotFound, QuotaExceeded, WorkerError."""
        place = self._place_at(self.model(name))
        number = self._next_handle
        create_queue.issue(place.space, number)
        self._next_handle = number + 1
        self.queues[number] = place
        return number

    def space(self, queue: int, call: str) -> AddressSpace:
        """What a queue belongs to, for a call of it (name with underscores). Raises NotFound; Unsupported if the
        model does not implement the call's trait."""
        place = self.queues.get(queue)
        if place is None or call in place.refusals:
            raise Unsupported(self._place_of(queue).refusals[call])
        return place.space

    def check_needs(self, queue: int, needs: Mapping[int, str], arguments: Sequence[Any]) -> None:
        """Raises Unsupported for an argument that the queue's model has no trait for; `needs` by the places of these,
        with what their refusals go by."""
        refusals = self.queues[queue].refusals
        for place, name in needs.items() if refusals else ():
            if arguments[place] and name in refusals:
                raise Unsupported(refusals[name])

    def model_of(self, queue: int) -> ModelView:
        """The model of a queue; raises NotFound."""
        return self._place_of(queue).model

    def _place_of(self, queue: int) -> Place:
        place = self.queues.get(queue)
        if place is None:
            raise NotFound(f"there is no queue {queue}: the first argument is the number of a queue, from create-queue")
        return place

    # ---- handles ----

    def add_handle(self, value: object, close: Callable[[], None] | None = None) -> int:
        """Number of a new handle (sampler, detokenizer, matcher, response, blob, image). Calls `close` when it
        is dropped; at once if there is no room for it, and raises QuotaExceeded."""
        if len(self._handles) >= MAX_HANDLES:
            if close is not None:
                close()
            raise QuotaExceeded(
                f"{MAX_HANDLES} samplers, detokenizers, matchers, responses, blobs and images exist: drop some first"
            )
        number = self._next_handle
        self._next_handle += 1
        self._handles[number] = value
        if close is not None:
            self._closes[number] = close
        return number

    def add_blob(self, blob: Blob) -> int:
        """Number of a new handle of a blob that is open; as `add_handle`."""
        return self.add_handle(blob, lambda: self.inferlet.blobs.close(blob))

    def handle(self, number: int, kind: type[T]) -> T:
        """What has this number; raises NotFound, InvalidArgument."""
        value = self._handles.get(number)
        if value is None:
            is_queue = f", handle {number} is a queue" if number in self.queues else ""
            raise NotFound(f"there is no {_word(kind)} {number}{is_queue}")
        if not isinstance(value, kind):
            raise InvalidArgument(f"handle {number} is a {_word(type(value))}, not a {_word(kind)}")
        return value

    def handles_of(self, kind: type[T]) -> list[T]:
        """All that there are of a kind."""
        return [one for one in self._handles.values() if isinstance(one, kind)]

    def drop_handle(self, number: int) -> None:
        """Raises NotFound."""
        if number in self.queues:
            destroy_queue.issue(self.queues.pop(number).space, number)
            return
        if number not in self._handles:
            raise NotFound(f"there is no handle {number}: it was dropped before, or never given")
        if close := self.forget_handle(number):
            close()

    def forget_handle(self, number: int) -> Callable[[], None] | None:
        """The handle is gone; what its drop would do is left to the caller."""
        del self._handles[number]
        return self._closes.pop(number, None)

    # ---- imports ----

    def take_import(self, future: int) -> tuple[int, int]:
        """First address and number of pages of an import whose future is done. Raises QuotaExceeded, Exhausted."""
        space = next(place.space for place in self._places.values() if future in place.space.imports)
        return fetched(space, future)

    def drop_import(self, future: int) -> None:
        """Gives back what a future that was cancelled gives, if it is an import's."""
        for place in self._places.values():
            if place.space.imports:
                cancel_fetch(place.space, future)

    # ---- the world outside ----

    @property
    def outbound(self) -> Outbound:
        """Its requests to servers outside; made at the first one."""
        if self._outbound is None:
            limits, standing = self.inferlet.limits, self.inferlet.launched.standing
            most = limits.max_http_requests, limits.max_http_bytes
            work = self.inferlet.background.do
            self._outbound = self.reach.http.outbound(standing.tenant, *most, work, standing.may_send)
        return self._outbound

    # ---- holdings ----

    def usage(self) -> tuple[int, int]:
        """Pages and embeds, over all models."""
        pages = embeds = 0
        for place in self._places.values():
            held = place.space.usage()
            pages += held.pages
            embeds += held.embeds
        return pages, embeds

    @property
    def is_at_work(self) -> bool:
        """Whether a model has something to do for it."""
        return any(place.space.is_at_work for place in self._places.values())

    def release(self) -> None:
        """Gives back what the inferlet holds at models and outside. Idempotent."""
        if self._outbound is not None:
            self._outbound.close()
        self.reach.topics.ended(self.inferlet.number, self.inferlet.launched.standing.tenant.name)
        for place in self._places.values():
            place.space.end(Cancelled("the inferlet has ended"))
            place.model.release(self.inferlet.number)
        self._places.clear()
        self.pending.spaces.clear()
        self.queues.clear()
        for value in self._handles.values():
            if isinstance(value, GrammarMatcher):
                value.close()
        self._handles.clear()
        self._closes.clear()


def quota_of(limits: InferletLimits) -> Quota:
    """What an inferlet of these limits may hold."""
    return Quota(limits.max_pages, limits.max_embeds, limits.max_queues, list_bytes=limits.max_pending_bytes)


def _word(kind: type[object]) -> str:
    """What programs call a kind of handle."""
    return "matcher" if issubclass(kind, Matcher) else kind.__name__.lower()
