"""The scenarios of `serve`: a file each. Its docstring is its question, and `measure(plan)` gives its rows."""
