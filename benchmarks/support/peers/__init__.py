"""Other engines on the same checkpoint: what `peers` compares with. Each runs in a process of its own."""
