"""One module per command kind (the paper's API handlers, section 5.3). `table` maps a batch's type to its handler."""
