"""Routes that programs serve: which program answers a request, and what its inferlet's end means to the client."""
