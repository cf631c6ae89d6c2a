"""Images of clients: how many vectors they take (`tiling`), and how a child process with bounds makes tiles of them."""
