"""Products of the rows of a batch, each with the matrices of its own adapter: one call for all adapters of a layer."""
