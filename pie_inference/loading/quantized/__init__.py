"""Reads weights that a checkpoint has in a quantized form; `choose.py` finds the scheme."""
