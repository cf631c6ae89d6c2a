"""The parts of `gpu_bench`, each run in a process of its own so that it has the GPU to itself."""
