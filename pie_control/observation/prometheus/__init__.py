"""What was measured, as Prometheus reads it."""
