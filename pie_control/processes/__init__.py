"""Child processes of the control process: what they say, how they end."""
