"""Distributions and scores of the next token (paper, section 4.2)."""
