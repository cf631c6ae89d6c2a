"""How models write calls of tools: one module a format, and `choose` finds that of a model."""
