"""Watches a server: the waves of its schedulers, what turns tell its hosts, its inferlets' ends. A server without it
runs no line of this."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING

from pie_control.registry.entry import Entry
from pie_control.registry.registry import Registry
from pie_control.scheduling import Turn
from pie_control.scheduling.answers import Wave
from pie_control.scheduling.statistics import Counts

from .http_requests import HttpRequests
from .requests import ModelRequests

if TYPE_CHECKING:
    from .traces import Traces  # which needs OpenTelemetry


class Observer:
    """What is measured, by model. Belongs to the thread of the control loop."""

    def __init__(self, registry: Registry, traces: Traces | None = None) -> None:
        """`traces`: what makes spans of the same."""
        self.traces = traces
        self.models: dict[str, ModelRequests] = {}
        self.http = HttpRequests()
        self.line: Callable[[], Mapping[str, int]] = dict
        """How many requests of served routes are served, and how many wait."""
        self._registry = registry
        registry.on_end.append(self._ended)

    def of_model(self, name: str) -> ModelRequests:
        """What is measured at a model."""
        if name not in self.models:
            self.models[name] = ModelRequests(self._registry.try_running)
        return self.models[name]

    def watch(self, model: str, counts: Counts) -> None:
        """Hears of the waves that a scheduler of this model counts."""
        counts.on_sent.append(partial(self.sent, model))

    def sent(self, model: str, wave: Wave) -> None:
        """A wave goes to a worker."""
        self.of_model(model).sent(wave, monotonic())
        if self.traces:
            self.traces.sent(model, wave)

    def turned(self, model: str, turn: Turn) -> None:
        """What a turn tells inferlets, before they hear it."""
        requests, now = self.of_model(model), monotonic()
        if turn.runs:
            requests.tokens_came(turn.runs, now)
            if self.traces:
                self.traces.tokens_came(model, turn.runs)
        if turn.completions:
            requests.answered(turn.completions, now)

    def _ended(self, entry: Entry) -> None:
        now = monotonic()
        for requests in self.models.values():
            requests.inferlet_ended(entry, now)
