"""Models and tokenizers that benchmarks make."""
