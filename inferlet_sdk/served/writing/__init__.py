"""Answers as the model writes them."""
