"""How a checkpoint would run on this machine: computed from its headers (`checkup`), or measured (`measure`)."""
