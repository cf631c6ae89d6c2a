"""Puts a model together of what the other folders have: `plan.py` chooses, `load.py` builds what was chosen."""
