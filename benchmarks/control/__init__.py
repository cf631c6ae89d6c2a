"""What the control layer costs: calls, launches, memory, a token's way."""
