"""Families of metrics from values by their labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from ..histogram import Histogram

Values = Mapping[Any, float]
"""By the values of the labels, which are a tuple of texts."""


def counter(name: str, text: str, labels: Sequence[str], values: Values) -> Metric:
    """A family of counters; its samples end in `_total`."""
    family = CounterMetricFamily(name, text, labels=labels)
    for given, value in values.items():
        family.add_metric(given, value)
    return family


def gauge(name: str, text: str, labels: Sequence[str], values: Values) -> Metric:
    """A family of gauges."""
    family = GaugeMetricFamily(name, text, labels=labels)
    for given, value in values.items():
        family.add_metric(given, value)
    return family


def histogram(name: str, text: str, labels: Sequence[str], values: Mapping[Any, Histogram]) -> Metric:
    """A family of histograms."""
    family = HistogramMetricFamily(name, text, labels=labels)
    for given, value in values.items():
        family.add_metric(given, [(_text(bound), count) for bound, count in value.cumulative()], value.sum)
    return family


def _text(bound: float) -> str:
    """A bound as clients of Prometheus write it: `1.0`, `+Inf`."""
    return "+Inf" if bound == inf else str(bound)
