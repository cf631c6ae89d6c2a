"""Texts of the second demo model: puzzles, sums, sorting, look-ups, code, swarms, checks. See README.md."""
