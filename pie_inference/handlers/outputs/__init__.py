"""Reads outputs of the model: distributions and log-probabilities of the next token."""
