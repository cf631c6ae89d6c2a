"""Commands for authors of inferlets. They need no server."""
