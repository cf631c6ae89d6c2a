"""Kernels in C++ for CPUs with AVX-512, AVX2 or NEON: one source, compiled at first use for the CPU at hand.

`build` compiles the sources of this folder; `library` loads the result and calls it. The sources have a plain C
interface (addresses and integers), include no header of torch, and have threads of their own (`parallel.h`). Without a
compiler or the right CPU, plain torch operations serve instead.
"""
