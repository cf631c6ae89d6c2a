"""One module for each call (the paper's API handlers, section 5.3), with a function of the same name. `table` finds
them."""
