"""What futures give, where that is not derived from the type of the value."""
