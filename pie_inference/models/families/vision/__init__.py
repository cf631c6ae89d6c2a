"""Models that see: a vision tower beside the decoder."""
