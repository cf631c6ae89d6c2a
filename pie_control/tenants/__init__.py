"""Who an inferlet works for, and what follows from that. Pure values."""
