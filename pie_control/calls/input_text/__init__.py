"""Embeds from tokens (paper, section 4.2)."""
