"""What an address space knows of its addresses: which are owned, and what is in them."""
