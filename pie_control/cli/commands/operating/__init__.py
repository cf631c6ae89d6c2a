"""Commands of an operator, on the machine of the server."""
