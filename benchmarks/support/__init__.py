"""Parts that benchmarks share: their own server, guests, checkpoints, the machine's rates, other engines."""
