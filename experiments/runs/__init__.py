"""Training runs from start to end, for commands and for other programs: no flags, no printing."""
