"""Pages that inferlets of a tenant share by name (paper, section 4.1)."""
