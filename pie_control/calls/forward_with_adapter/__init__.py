"""ForwardWithAdapter: the Transformer with a LoRA adapter."""
