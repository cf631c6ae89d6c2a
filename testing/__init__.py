"""What tests and benchmarks share, and no installation has: oracles, checkpoints with random weights, batches written
down short, a headless browser."""
