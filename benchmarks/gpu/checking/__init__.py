"""What `gpu_check` compares, in parts."""
