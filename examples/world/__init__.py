"""An agent's world: pages of the village and tools, over plain HTTP and MCP (README.md)."""
