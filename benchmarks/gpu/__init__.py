"""Benchmarks for machines with a GPU: does it compute correctly, and how fast does it decode?"""
