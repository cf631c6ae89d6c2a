"""Makes a component of our world from a core module."""
