"""Vectors of texts, and how well documents answer a query."""
