"""What Prometheus reads, and what is measured of HTTP requests for it."""
