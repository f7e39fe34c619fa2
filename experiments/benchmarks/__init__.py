"""What the benchmark commands time, and the independent PyTorch versions."""
