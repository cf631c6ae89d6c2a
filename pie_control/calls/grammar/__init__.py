"""What may come next. The other functions of this trait are answered by the host alone (host_api/grammar.py)."""
