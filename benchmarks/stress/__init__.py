"""What a server withstands."""
