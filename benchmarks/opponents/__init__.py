"""Opponents of Pie: servers of completions, their clients, and a proxy that delays (docs/benchmarks.md)."""
