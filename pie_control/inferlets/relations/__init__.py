"""An inferlet and others: what they say to each other, and those that it launches."""
