"""Kernels of recurrent layers, one module per implementation."""
