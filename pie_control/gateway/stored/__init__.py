"""Answers that programs let the server store: they can be asked for later, also while they are made."""
