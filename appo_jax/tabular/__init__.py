"""The theory, executable: Algorithms 1 to 3 of the paper on finite-horizon tabular MDPs."""
