"""Parts of transformers' modules that become ours.

Each is proved before the weights are there: the code of transformers and ours run on the same random rows in float32,
with other parts in place of which random results stand. What is not equal stays transformers' own. Scans of Mamba 1,
which begin with a state here (`scans.py`), are tried by the proof of the whole model.
"""
