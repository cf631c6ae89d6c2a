"""Benchmarks: one module per question, run as `python -m benchmarks NAME` (docs/benchmarks.md)."""
