"""Pages of the KV cache and embedding slots (paper, section 4.1)."""
