"""Traits that extend others (paper, section 4.4)."""
