"""Kernels in C++ for CPUs with AVX-512 and bfloat16 products, compiled at first use.

`build` compiles the sources of this folder, `library` loads the result and calls it. The sources have a plain C
interface (addresses and integers), include nothing of torch, and run their threads in torch's own OpenMP pool
(`parallel.h`). Where there is no compiler or not the right CPU, plain torch operations serve instead.
"""
