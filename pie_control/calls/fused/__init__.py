"""Sampling on the worker (paper, section 7.4)."""
