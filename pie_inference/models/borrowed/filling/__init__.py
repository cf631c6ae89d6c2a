"""Gives a module of transformers the tensors of a checkpoint, of which each rank has its share."""
