"""The dashboard over HTTP."""
