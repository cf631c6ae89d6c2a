"""Application hosts (paper, section 5.1): processes that run inferlets, and what crosses between them and the control
process."""
