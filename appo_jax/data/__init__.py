"""Data sets: in memory, on disk, and the labels that go with them."""
