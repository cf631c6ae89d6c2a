"""Weight-only quantization: linear layers store their weights in 8 or 4 bits and multiply rows in the model's dtype.
Embeddings, output heads and norms stay unchanged."""
