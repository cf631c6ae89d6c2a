"""What a context is filled with: texts, chat messages, images."""
