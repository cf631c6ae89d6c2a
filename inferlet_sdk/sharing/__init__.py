"""Keys that inferlets of one tenant share: contexts by name, and equal prefixes of long prompts by themselves."""
