"""Blobs and images: one module for each WIT interface."""
