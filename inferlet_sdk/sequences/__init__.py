"""Token sequences with their KV cache: what a context is made of."""
