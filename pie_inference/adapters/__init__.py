"""LoRA adapters (Hu et al. 2021) beside the linear layers of a model.

An adapter changes a layer with weight W to W + scale * B A, where A and B have few rows and columns. Here W stays as it
is, perhaps quantized, and the product of each row with its own adapter's A and B is added to its result. So a batch may
mix rows of several adapters, and rows without one.

`lora` is what layers do; `adapters` has what is loaded; `peft_config`, `patterns` and `files` read what PEFT writes.
"""
