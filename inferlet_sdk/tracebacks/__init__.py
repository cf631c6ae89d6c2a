"""Tracebacks of a program, and what to do about its errors."""
