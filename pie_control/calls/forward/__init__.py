"""The Transformer (paper, section 4.2)."""
