"""Chooses whose products serve a model."""

from __future__ import annotations

import dataclasses
import logging
import platform
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from ..assembly.plan import ServingPlan
from ..cpu_kernels.build import cpu_name
from ..cpu_kernels.ways import OWN, Ways
from ..device.threads import SMALL_MODEL_BYTES
from .candidates import Shapes, sizes_of
from .kept import Trials, find_trials, keep_trials, path_beside
from .measure import Timed, time_sizes

WORTH = 0.85
"""Torch's products serve where their worst size is beaten by less than this share of what beats ours. Not for a little:
ours give a row the same result in every batch, and lose less to busy neighbours."""

log = logging.getLogger("pie.kernels")


def choose_ways(plan: ServingPlan) -> Ways:
    """The ways for a model: those of its trials, which are made now if there are none."""
    if not tries(plan):
        return OWN
    trials = find_trials(_path(plan), _key(plan))
    if trials is None:
        trials = _try(plan)
        keep_trials(_path(plan), _key(plan), trials)
    return decide(trials)


def known_ways(plan: ServingPlan) -> tuple[Ways, Trials | None]:
    """The ways for a model as far as they are known without a trial, with the trials that they come from."""
    trials = find_trials(_path(plan), _key(plan)) if tries(plan) else None
    return (OWN if trials is None else decide(trials)), trials


def tries(plan: ServingPlan) -> bool:
    """Whether a model's products are tried. Not those in float32, whose results docs/models.md promises to be the same
    whatever else is in a batch; nor those of a small model, which the caches hold: there all take about as long."""
    return (
        plan.library is not None
        and plan.config.kernels == "auto"
        and plan.dtype == torch.bfloat16
        and plan.ranks.size == 1
        and plan.weight_bytes >= SMALL_MODEL_BYTES
    )


def decide(trials: Trials) -> Ways:
    """Each kind's way with the least regret: how many times as long as the other it takes at the size where it is
    worst."""
    return dataclasses.replace(OWN, **{kind: _least_regret(timed) for kind, timed in trials.items()})


def _least_regret(timed: Sequence[Timed]) -> Any:
    own, torchs = (max((_regret(each, way) for each in timed), default=1.0) for way in ("own", "torch"))
    return "torch" if torchs < WORTH * own else "own"


def _regret(timed: Timed, way: str) -> float:
    if way not in timed.seconds:
        return float("inf")
    return timed.seconds[way] / min(timed.seconds.values())


def _try(plan: ServingPlan) -> Trials:
    started = time.perf_counter()
    before = torch.get_num_threads()
    torch.set_num_threads(plan.threads)
    try:
        trials = {kind: time_sizes(sizes) for kind, sizes in sizes_of(plan)}
    finally:
        torch.set_num_threads(before)
    log.info("tried the products of this model in %.1f s: %s", time.perf_counter() - started, decide(trials))
    return trials


def _path(plan: ServingPlan) -> Path:
    assert plan.library is not None
    return path_beside(plan.library.path)


def _key(plan: ServingPlan) -> str:
    """What times depend on, beside what the library's name has."""
    parts = (cpu_name(), platform.machine(), f"torch {torch.__version__}", plan.config.max_isa)
    return "; ".join((*parts, f"{plan.threads} threads", str(Shapes.of(plan))))
