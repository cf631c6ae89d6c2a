"""IntrospectiveForward: the Transformer, and what its attention looked at."""
