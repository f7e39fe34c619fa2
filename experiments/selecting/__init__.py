"""What `experiments.select` is made of."""
