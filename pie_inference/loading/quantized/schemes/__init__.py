"""A module for each scheme; `choose.py` beside this folder finds the one of a checkpoint."""
