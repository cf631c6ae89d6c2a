"""What the paper evaluates (section 7), each as a benchmark."""
