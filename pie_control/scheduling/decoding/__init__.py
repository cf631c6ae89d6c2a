"""Decode runs that are under way: where each is, and the steps of all that a wave takes."""
