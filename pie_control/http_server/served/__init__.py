"""Routes that programs serve, in the forms of the APIs that clients know."""
