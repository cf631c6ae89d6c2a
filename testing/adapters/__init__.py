"""Adapters for tests: files with random weights, and problems for kernels."""
