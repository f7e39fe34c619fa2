"""What `experiments.theory` measures, and its figures."""
