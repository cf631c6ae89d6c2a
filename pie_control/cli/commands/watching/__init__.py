"""Commands that a user sits in front of: they go on until they are left."""
