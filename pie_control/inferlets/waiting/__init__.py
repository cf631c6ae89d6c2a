"""What an inferlet waits for."""
