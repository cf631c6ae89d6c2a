"""Those who wait for a place, and how fast places come free. Pure."""
