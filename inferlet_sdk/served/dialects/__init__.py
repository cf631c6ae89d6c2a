"""Answers in the form of each API."""
