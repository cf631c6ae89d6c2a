"""What the dashboard shows of a server, and its pages."""
