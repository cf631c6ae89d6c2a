"""What a checkpoint would do on this machine: told from its headers (`checkup`), or measured (`measure`)."""
