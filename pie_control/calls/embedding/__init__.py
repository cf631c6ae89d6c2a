"""Vectors of whole texts, pooled from hidden states."""
