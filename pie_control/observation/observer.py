"""Watches a server: the waves of its schedulers, what turns tell its hosts, its inferlets' ends. A server without it
runs no line of this."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

from pie_control.engine.loop import Inferlets
from pie_control.engine.replica import Replica
from pie_control.registry.entry import Entry
from pie_control.registry.registry import Registry
from pie_control.scheduling import Turn
from pie_control.scheduling.answers import Wave
from pie_control.scheduling.statistics import Counts

from .http_requests import HttpRequests
from .requests import ModelRequests


class Observer:
    """What is measured, by model. Belongs to the thread of the control loop."""

    def __init__(self, registry: Registry, clock: Callable[[], float] = monotonic) -> None:
        """`clock` is in seconds, and the one by which the registry says when inferlets were launched."""
        self.models: dict[str, ModelRequests] = {}
        self.http = HttpRequests()
        self._registry = registry
        self._clock = clock
        registry.on_end.append(self._ended)

    def of_model(self, name: str) -> ModelRequests:
        """What is measured at a model."""
        if name not in self.models:
            self.models[name] = ModelRequests(self._registry.try_running)
        return self.models[name]

    def counts(self, model: str) -> Counts:
        """The counts for a scheduler of this model."""
        return _WatchedCounts(self.of_model(model), self._clock)

    def watching(self, hosts: Inferlets) -> Inferlets:
        """The hosts as the loop shall see them, so that what it tells them is seen here first."""
        return _WatchedInferlets(hosts, self)

    def turned(self, model: str, turn: Turn) -> None:
        """A turn tells inferlets something."""
        requests, now = self.of_model(model), self._clock()
        if turn.runs:
            requests.tokens_came(turn.runs, now)
        if turn.completions:
            requests.answered(turn.completions, now)

    def _ended(self, entry: Entry) -> None:
        now = self._clock()
        for requests in self.models.values():
            requests.inferlet_ended(entry, now)


class _WatchedCounts(Counts):
    def __init__(self, requests: ModelRequests, clock: Callable[[], float]) -> None:
        super().__init__()
        self._requests = requests
        self._clock = clock

    def add(self, wave: Wave) -> None:
        super().add(wave)
        self._requests.sent(wave, self._clock())


class _WatchedInferlets:
    def __init__(self, hosts: Inferlets, observer: Observer) -> None:
        self._hosts = hosts
        self._observer = observer
        self.flush = hosts.flush
        self.tell_states = hosts.tell_states

    def post_results(self, model: str, replica: Replica, turn: Turn) -> None:
        self._observer.turned(model, turn)
        self._hosts.post_results(model, replica, turn)
