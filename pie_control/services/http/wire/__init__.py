"""HTTP/1.1 on one connection to a server outside."""
