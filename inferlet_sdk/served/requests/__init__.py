"""What a request asks, as typed values."""
