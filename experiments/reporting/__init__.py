"""What `experiments.report` is made of."""
