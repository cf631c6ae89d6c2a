"""Clients that others wrote, unchanged, on the routes that programs serve."""
