"""Finds wrong uses of the API in a program before it is launched, from its text alone: nothing of it is executed.

What the SDK has is read from the SDK itself (`inspect`). Where the type of a value is not certain, nothing is said: a
finding is a mistake, or code that never runs.
"""

from .program import check, check_syntax

__all__ = ["check", "check_syntax"]
