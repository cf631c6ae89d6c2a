"""What tests and benchmarks of the inference layer share, and no installation has: oracles, checkpoints with random
weights, batches written down short."""
