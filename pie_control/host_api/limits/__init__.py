"""How much one inferlet may pass to its host functions, and leave with them."""
