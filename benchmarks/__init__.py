"""Benchmarks: one module per question, run as `python -m benchmarks NAME --json FILE` (see docs/benchmarks.md)."""
