"""Parts of transformers' modules that become ours.

Each is proved before the weights are there: the code of transformers and ours run on the same random rows in float32,
with other parts in place of which random results stand. What is not equal stays transformers' own.
"""
