"""What it costs to be seen: metrics, and viewers of the dashboard."""
