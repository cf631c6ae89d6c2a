"""`closed`: a plain server of completions over Pie's own workers, without programs.

It has what serving systems with a closed decode loop have: continuous batching, chunked prefill, automatic prefix
caching, streaming, n samples, stop strings and JSON schemas. Kernels and pools are the worker's, so what differs from
Pie is programmability alone.
"""
