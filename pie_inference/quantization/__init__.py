"""Weight-only quantization: linear layers store their weights in 8 or 4 bits and multiply rows in the model's dtype.
An output head has 8 bits; embeddings, routers and norms stay unchanged."""
