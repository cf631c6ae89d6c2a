"""Servers under load over HTTP, as clients of OpenAI's API see them."""
