"""Forms waves: what is taken of whom."""
