"""All that was measured, in the text format of Prometheus (docs/metrics.md says what each name means)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from prometheus_client import generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from pie_control.engine.app_host import HostStatistics
from pie_control.engine.model import ReplicaStatistics
from pie_control.registry.registry import RegistryStatistics
from pie_control.resources.pool import PoolUsage
from pie_control.tenants.budgets import Spender

from ..http_requests import HttpRequests
from ..observer import Observer
from .families import Values, counter, gauge, histogram
from .other_names import other_names

Workers = Mapping[str, Sequence[ReplicaStatistics]]
"""The workers of each model, in order."""


def exposition(
    observer: Observer,
    inferlets: RegistryStatistics,
    hosts: Sequence[HostStatistics],
    workers: Workers,
    budgets: Mapping[str, Spender],
    now: float,
    tenant: str | None = None,
) -> bytes:
    """The answer to a scrape. `budgets`: of tenants; `now`: of their clock, in seconds. `tenant`: samples of the others
    are left out."""
    families = [
        *_of_inferlets(inferlets),
        *_of_hosts(hosts),
        *_of_workers(workers),
        *_of_requests(observer),
        *_of_http(observer.http),
        *_of_served(observer.line()),
        *_of_budgets(budgets, now),
        *other_names(observer.models, workers, observer.line().get("waiting", 0)),
    ]
    if tenant is not None:
        for family in families:
            family.samples = [one for one in family.samples if one.labels.get("tenant", tenant) == tenant]
    return generate_latest(_Fixed(families))


class _Fixed(Collector):
    def __init__(self, families: Sequence[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        yield from self._families


def _of_inferlets(counts: RegistryStatistics) -> Iterator[Metric]:
    states = {("created",): counts.created, ("running",): counts.running - counts.created}
    yield gauge("pie_inferlets", "Inferlets that have not ended, by state.", ["state"], states)
    tenants = {(name,): count for name, count in counts.of_tenants.items()}
    yield gauge("pie_tenant_inferlets", "Inferlets that have not ended, by tenant.", ["tenant"], tenants)
    yield counter("pie_launches", "Inferlets that were launched.", [], {(): counts.launched})
    ended = {(status,): count for status, count in counts.ended.items()}
    yield counter("pie_inferlets_ended", "Inferlets that ended, by status.", ["status"], ended)


def _of_hosts(hosts: Sequence[HostStatistics]) -> Iterator[Metric]:
    label = ["host"]

    def of(field: str) -> Values:
        return {(str(host.host),): getattr(host, field) for host in hosts}

    up = {(str(host.host),): host.outage is None for host in hosts}
    yield gauge("pie_host_up", "Whether an application host serves.", label, up)
    yield counter("pie_host_restarts", "Restarts of an application host.", label, of("restarts"))
    yield gauge("pie_host_inferlets", "Inferlets of an application host.", label, of("inferlets"))
    yield gauge("pie_host_memory_bytes", "Memory of its inferlets.", label, of("memory_bytes"))
    yield counter("pie_host_guest_seconds", "Processor time of its inferlets.", label, of("guest_seconds"))
    yield counter("pie_host_turns", "Turns of its inferlets.", label, of("turns"))
    yield counter("pie_host_turns_cut", "Turns that were cut short.", label, of("preemptions"))
    yield gauge("pie_host_warm_guests", "Python guests that wait for a launch.", label, of("warm"))


def _of_workers(workers: Workers) -> Iterator[Metric]:
    labels = ["model", "worker"]
    each = {(model, str(number)): one for model, some in workers.items() for number, one in enumerate(some, start=1)}

    def of(field: str) -> Values:
        return {given: getattr(one.scheduler, field) for given, one in each.items()}

    def by(field: str) -> Values:
        found = {given: getattr(one.scheduler, field) for given, one in each.items()}
        return {(*given, call): count for given, counts in found.items() for call, count in counts.items()}

    up = {given: one.outage is None for given, one in each.items()}
    yield gauge("pie_worker_up", "Whether a worker serves.", labels, up)
    restarts = {given: one.restarts for given, one in each.items()}
    yield counter("pie_worker_restarts", "Restarts of a worker.", labels, restarts)
    yield counter("pie_worker_busy_seconds", "Time that its waves took.", labels, of("worker_seconds"))
    yield counter("pie_waves", "Waves that were sent.", labels, of("waves"))
    yield gauge("pie_waves_in_flight", "Waves that are not answered.", labels, of("waves_in_flight"))
    yield counter("pie_input_tokens", "Input tokens of forwards, decode steps included.", labels, of("input_tokens"))
    yield counter("pie_commands", "Commands that were sent.", [*labels, "call"], by("commands"))
    yield counter("pie_batches", "Batches that were sent.", [*labels, "call"], by("batches"))
    yield counter("pie_evictions", "Inferlets that were ended for their memory.", labels, of("evictions"))
    yield gauge("pie_placed_inferlets", "Inferlets that have used it.", labels, of("inferlets"))
    yield gauge("pie_decode_runs", "Decode runs under way.", labels, of("runs"))
    yield gauge("pie_commands_waiting", "Commands that wait.", labels, of("commands_waiting"))
    yield gauge("pie_backlog_seconds", "Time since the last wave, while some wait.", labels, of("waits_seconds"))
    queues: dict[tuple[str, ...], float] = {}
    for given, one in each.items():
        waiting = one.scheduler
        queues[*given, "ready"] = waiting.queues_ready
        queues[*given, "memory"] = waiting.queues_starved
        queues[*given, "budget"] = waiting.queues_held
        others = waiting.queues_waiting - waiting.queues_ready - waiting.queues_starved - waiting.queues_held
        queues[*given, "others"] = max(0, others)
    yield gauge("pie_queues_waiting", "Queues with commands that wait, by what for.", [*labels, "for"], queues)
    for field in ("pages", "embeds", "states", "token_slots"):
        pools = {
            (*given, state): count
            for given, one in each.items()
            for state, count in _states(getattr(one.scheduler, field)).items()
        }
        yield gauge(f"pie_{field}", f"The {field.replace('_', ' ')} of a worker, by state.", [*labels, "state"], pools)
    yield gauge("pie_exports", "Exports that can be imported.", labels, of("exports"))
    yield gauge("pie_export_pages", "Used pages that only exports hold.", labels, of("export_pages"))


def _of_served(line: Mapping[str, int]) -> Iterator[Metric]:
    states = {(state,): count for state, count in line.items()}
    yield gauge("pie_served_requests", "Requests of served routes, by state.", ["state"], states)


def _of_budgets(budgets: Mapping[str, Spender], now: float) -> Iterator[Metric]:
    limits: dict[tuple[str, ...], float] = {}
    left: dict[tuple[str, ...], float] = {}
    for tenant, one in budgets.items():
        found = [(what, limit, spent.total(now)) for what, spent, limit in one.bounds]
        if one.budget.tokens_per_day is not None:
            found.append(("tokens a day", one.budget.tokens_per_day, one.tokens_today))
        for what, limit, spent in found:
            limits[tenant, what], left[tenant, what] = limit, max(0, limit - spent)
    yield gauge("pie_budget", "What a tenant may spend.", ["tenant", "of"], limits)
    yield gauge("pie_budget_left", "What is left of it.", ["tenant", "of"], left)
    refused = {(tenant,): one.refused for tenant, one in budgets.items()}
    yield counter("pie_budget_refused", "Requests beyond the budget of a tenant.", ["tenant"], refused)


def _states(pool: PoolUsage) -> dict[str, int]:
    return {"free": pool.free, "used": pool.used, "quarantined": pool.quarantined}


def _of_requests(observer: Observer) -> Iterator[Metric]:
    models = observer.models.items()
    tokens = {
        (model, tenant, kind): getattr(count, kind)
        for model, requests in models
        for tenant, count in requests.tenants.items()
        for kind in ("prompt", "cached", "generated")
    }
    yield counter("pie_tokens", "Tokens of inferlets, by kind.", ["model", "tenant", "kind"], tokens)
    sizes = {(model, call): sizes for model, requests in models for call, sizes in requests.batch_commands.items()}
    yield histogram("pie_batch_commands", "Commands in a batch.", ["model", "call"], sizes)
    for name, field, text in (
        ("pie_wave_tokens", "wave_tokens", "Input tokens in a wave."),
        ("pie_first_token_seconds", "first_token", "From a launch to the first generated token."),
        ("pie_between_tokens_seconds", "between_tokens", "Between two tokens of a decode run."),
        ("pie_inferlet_seconds", "whole", "From launch to end, of inferlets that have generated."),
    ):
        yield histogram(name, text, ["model"], {(model,): getattr(requests, field) for model, requests in models})


def _of_http(requests: HttpRequests) -> Iterator[Metric]:
    answered = dict(requests.answered)
    yield counter("http_requests", "HTTP requests.", ["handler", "method", "status"], answered)
    seconds = {(handler,): value for handler, value in requests.seconds.items()}
    yield histogram("http_request_duration_seconds", "Time of HTTP requests, streams included.", ["handler"], seconds)
