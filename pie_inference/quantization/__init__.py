"""Weight-only quantization: linear layers whose weights are stored in 8 or 4 bits and multiply rows of the model's
dtype. Embeddings, output heads and norms stay as they are."""
