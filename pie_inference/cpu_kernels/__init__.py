"""Kernels in C++ for CPUs with AVX-512 and bfloat16 products, compiled at first use.

`build` compiles the sources of this folder; `library` loads the result and calls it. The sources have a plain C
interface (addresses and integers), include no header of torch, and run their threads in torch's own OpenMP pool
(`parallel.h`). Without a compiler or the right CPU, plain torch operations serve instead.
"""
