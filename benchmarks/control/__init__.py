"""The cost of the control layer: calls, launches, memory, the way of a token."""
