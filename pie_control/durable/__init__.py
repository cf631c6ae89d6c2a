"""What outlives a server: one SQLite file in the state folder."""
