"""Other engines on the same checkpoint, with which `peers` compares Pie. Each runs in its own process."""
