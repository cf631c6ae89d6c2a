"""What a client sends to be run: programs as files, folders or functions, and their arguments."""
