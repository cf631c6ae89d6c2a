"""Other engines on the same checkpoint: what `cpu_model` compares with. Each runs in a process of its own."""
