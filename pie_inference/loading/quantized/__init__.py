"""Reads weights that a checkpoint has in a quantized form: a module for each scheme, chosen by `choose.py`."""
