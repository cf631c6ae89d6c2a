"""What benchmarks share: a server of their own, guests, checkpoints, what a machine can do, other engines."""
