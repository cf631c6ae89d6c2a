"""The LoRA adapters of a model, on all of its workers.

Theory. An adapter has a number that no other one ever has, so a command that names a dropped one is known as such on
the worker, and fails alone. Loading and bringing back go one after the other (`_turn`): a worker that starts again
while an adapter is loaded gets all adapters behind that, before it serves.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pie_inference.protocol import DropAdapter, LoadAdapter

from ..errors import BadAdapter, BadRequest, Conflict, UnknownName, WorkerUnavailable
from .replica import Replica

log = logging.getLogger(__name__)

NAME = re.compile(r"[\w.-]{1,64}")


@dataclass(frozen=True)
class AdapterInfo:
    """An adapter that inferlets can use, and the memory in bytes that it takes on a worker. `folder`: inside of
    --adapter-dir, or its name alone if the operator loaded it: tenants need not know where things lie."""

    name: str
    model: str
    folder: str
    bytes: int


@dataclass(frozen=True)
class _Loaded:
    message: LoadAdapter
    info: AdapterInfo


class Adapters:
    """Those of one model. All methods belong to the thread of one event loop."""

    def __init__(self, model: str, replicas: Sequence[Replica]) -> None:
        self._model = model
        self._replicas = replicas
        self._loaded: dict[str, _Loaded] = {}
        self._numbers = itertools.count()
        self._turn = asyncio.Lock()
        for replica in replicas:
            replica.prepare = self._bring_back

    def numbers(self) -> Mapping[str, int]:
        """The adapters that commands can name."""
        return {name: one.message.number for name, one in self._loaded.items()}

    def all(self) -> tuple[AdapterInfo, ...]:
        """In the order in which they were loaded."""
        return tuple(one.info for one in self._loaded.values())

    async def load(self, name: str, folder: str, inside: str = "") -> AdapterInfo:
        """Loads an adapter on all workers that serve; the others get it when they start again. It is on none if one
        cannot load it. `folder` and all of its files lie in `inside`, if that is given. Raises BadRequest (a name that
        cannot be), Conflict, BadAdapter, WorkerUnavailable."""
        if not NAME.fullmatch(name):
            raise BadRequest(f"an adapter is called by 1 to 64 letters, digits and . _ -, not {name[:80]!r}")
        async with self._turn:
            if name in self._loaded:
                raise Conflict(f"model {self._model} has an adapter {name!r} already: drop it first")
            message = LoadAdapter(next(self._numbers), folder, inside)
            shown = str(Path(folder).relative_to(inside)) if inside else Path(folder).name
            info = AdapterInfo(name, self._model, shown, await self._load(message, shown))
            self._loaded[name] = _Loaded(message, info)
            log.info("model %s has adapter %s, %d bytes, from %s", self._model, name, info.bytes, folder)
            return info

    async def _load(self, message: LoadAdapter, shown: str) -> int:
        """The bytes that it takes on a worker."""
        serving = [replica for replica in self._replicas if replica.life.serves]
        try:
            answers = await asyncio.gather(*(one.load_adapter(message) for one in serving), return_exceptions=True)
        except asyncio.CancelledError:  # nobody will name it, and a worker may have it
            self._drop(message.number)
            raise
        lost = [answer for answer in answers if isinstance(answer, BaseException)]
        late = [one for one, answer in zip(serving, answers, strict=True) if answer in lost and one.life.serves]
        told = [answer for answer in answers if not isinstance(answer, BaseException)]
        refused = next((answer.error for answer in told if answer.error is not None), None)
        if refused is None and told and not late:  # others that are lost get it when they are back
            return max(answer.nbytes for answer in told)
        self._drop(message.number)
        if refused is not None:
            raise BadAdapter(f"{shown}: {refused}")
        raise lost[0] if lost else WorkerUnavailable(f"model {self._model} has no worker now: try again later")

    def drop(self, name: str) -> AdapterInfo:
        """Forgets an adapter: commands that name it fail from now on. Raises UnknownName."""
        dropped = self._loaded.pop(name, None)
        if dropped is None:
            known = ", ".join(self._loaded) or "none"
            raise UnknownName(f"model {self._model} has no adapter {name[:80]!r}; it has: {known}")
        self._drop(dropped.message.number)
        return dropped.info

    def _drop(self, number: int) -> None:
        for replica in self._replicas:
            replica.drop_adapter(DropAdapter(number))

    async def _bring_back(self, replica: Replica) -> None:
        """Loads all adapters on a worker that has started again. What cannot be loaded any more is told, and fails
        where it is used."""
        async with self._turn:
            for name, one in list(self._loaded.items()):
                answer = await replica.load_adapter(one.message)
                if answer.error is not None:
                    lack = "a worker of model %s serves without adapter %s, from %s: %s"
                    log.error(lack, self._model, name, one.message.folder, answer.error)
                if name not in self._loaded:
                    replica.drop_adapter(DropAdapter(one.message.number))
