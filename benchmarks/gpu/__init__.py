"""For whoever has a GPU: does it compute the same, and how fast does it decode?"""
