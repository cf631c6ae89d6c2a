"""Choosing among several continuations of a context."""
