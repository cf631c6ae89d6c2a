"""Trials: which products are the fastest on this machine, measured when a model first starts on it.

`candidates` makes the products that compete, in the model's own shapes; `measure` times them; `kept` keeps the times
beside the compiled kernels; `choose` decides. Later starts read the kept times, so the choice stays the same.
"""
