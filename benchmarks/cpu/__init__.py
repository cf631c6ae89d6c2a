"""Models on a CPU, and the parts of a worker that they are made of."""
