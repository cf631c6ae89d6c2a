"""Values of many numbers in the form that costs a Python guest least: base64, one module for each WIT interface."""
