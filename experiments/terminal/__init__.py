"""How the commands talk to a terminal: flags, exit codes, signals, progress."""
