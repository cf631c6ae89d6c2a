"""What an operator sees of a server: counts and times that are kept only where `--metrics` asks for them."""
