"""Queues (paper, section 4.1)."""
