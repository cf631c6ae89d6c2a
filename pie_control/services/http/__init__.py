"""Requests of inferlets to servers outside: which are allowed, how they are made, and what bounds them."""
