"""Programs that serve routes, launched by themselves."""
