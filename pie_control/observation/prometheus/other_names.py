"""Metrics under the names of vLLM, where the meaning is the same, so that dashboards made for it show this server.

A request is an inferlet that has generated a token at the model (requests.py). Where vLLM would preempt a request and
compute it again later, an inferlet is ended; so preemptions are evictions. Nothing comes from other caches than ours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from prometheus_client.core import Metric

from pie_control.engine.model import ReplicaStatistics
from pie_control.scheduling import SchedulerStatistics

from ..requests import ModelRequests
from .families import Values, counter, gauge, histogram

MODEL = ["model_name"]
ENGINE = [*MODEL, "engine"]

Engines = Mapping[tuple[str, ...], SchedulerStatistics]
"""By model and number, from 0 on."""

HISTOGRAMS = {
    "time_to_first_token_seconds": ("first_token", "From a launch to the first generated token."),
    "inter_token_latency_seconds": ("between_tokens", "Between two tokens of a decode run."),
    "request_time_per_output_token_seconds": ("per_token", "Mean time of a request for each token behind its first."),
    "e2e_request_latency_seconds": ("whole", "From launch to end."),
    "request_queue_time_seconds": ("queued", "From a launch to the first wave with a forward of it."),
    "request_prefill_time_seconds": ("prefill", "From this wave to the first generated token."),
    "request_decode_time_seconds": ("decode", "From the first generated token to the last one."),
    "request_inference_time_seconds": ("inference", "From the first wave with a forward to the last generated token."),
    "request_prompt_tokens": ("prompt_length", "Prompt tokens of a request, cached ones included."),
    "request_generation_tokens": ("generated_length", "Generated tokens of a request."),
    "iteration_tokens_total": ("wave_tokens", "Input tokens in a wave."),
}


def other_names(
    models: Mapping[str, ModelRequests], workers: Mapping[str, Sequence[ReplicaStatistics]], in_line: int
) -> Iterator[Metric]:
    """Families whose names begin with `vllm:`. `in_line`: requests of served routes that wait for their turn; which
    model they will use is not known yet, so they count at the first one."""
    engines: Engines = {(model, str(n)): one.scheduler for model, some in workers.items() for n, one in enumerate(some)}
    yield gauge("vllm:num_requests_running", "Sequences in waves.", ENGINE, _each(engines, _running))
    waiting: dict[tuple[str, ...], float] = {}
    reasons: dict[tuple[str, ...], float] = {}
    for given, one in engines.items():
        ready = one.queues_ready + one.queues_starved
        deferred = max(0, one.queues_waiting - ready)
        reasons[*given, "capacity"], reasons[*given, "deferred"] = ready + in_line, deferred
        waiting[given] = ready + in_line + deferred
        in_line = 0
    yield gauge("vllm:num_requests_waiting", "Queues and served requests that wait.", ENGINE, waiting)
    yield gauge("vllm:num_requests_waiting_by_reason", "Queues that wait, by reason.", [*ENGINE, "reason"], reasons)
    yield gauge("vllm:kv_cache_usage_perc", "Part of the pages in use.", ENGINE, _each(engines, _usage))
    sizes = {(*given, str(one.page_size), str(one.pages.total)): 1 for given, one in engines.items()}
    yield gauge("vllm:cache_config_info", "The pages of a worker.", [*ENGINE, "block_size", "num_gpu_blocks"], sizes)
    yield counter("vllm:num_preemptions", "Evictions.", ENGINE, _each(engines, lambda one: one.evictions))
    yield from _tokens(models)
    ended = {(model, reason): count for model, one in models.items() for reason, count in one.ended.items()}
    yield counter("vllm:request_success", "Requests that ended, by reason.", [*MODEL, "finished_reason"], ended)
    for name, (field, text) in HISTOGRAMS.items():
        yield histogram(f"vllm:{name}", text, MODEL, {(model,): getattr(one, field) for model, one in models.items()})


def _each(engines: Engines, value: Callable[[SchedulerStatistics], float]) -> Values:
    return {given: value(one) for given, one in engines.items()}


def _running(one: SchedulerStatistics) -> int:
    return one.runs + one.queues_in_flight


def _usage(one: SchedulerStatistics) -> float:
    """Pages that only exports hold are taken where they are needed, so they do not count."""
    return (one.pages.used - one.export_pages) / max(1, one.pages.total)


def _tokens(models: Mapping[str, ModelRequests]) -> Iterator[Metric]:
    computed: dict[tuple[str, ...], int] = {}
    cached: dict[tuple[str, ...], int] = {}
    generated: dict[tuple[str, ...], int] = {}
    for model, requests in models.items():
        some = requests.tenants.values()
        computed[model,] = sum(tokens.prompt for tokens in some)
        cached[model,] = sum(tokens.cached for tokens in some)
        generated[model,] = sum(tokens.generated for tokens in some)
    prompt = {given: computed[given] + cached[given] for given in computed}
    sources = {
        **{(*given, "local_compute"): count for given, count in computed.items()},
        **{(*given, "local_cache_hit"): count for given, count in cached.items()},
        **{(*given, "external_kv_transfer"): 0 for given in computed},
    }
    yield counter("vllm:prompt_tokens", "Prompt tokens, cached ones included.", MODEL, prompt)
    yield counter("vllm:prompt_tokens_cached", "Prompt tokens that were not computed.", MODEL, cached)
    yield counter("vllm:prompt_tokens_by_source", "Prompt tokens by source.", [*MODEL, "source"], sources)
    yield counter("vllm:generation_tokens", "Generated tokens.", MODEL, generated)
    yield counter("vllm:prefix_cache_queries", "Prompt tokens.", MODEL, prompt)
    yield counter("vllm:prefix_cache_hits", "Prompt tokens that were imported.", MODEL, cached)
