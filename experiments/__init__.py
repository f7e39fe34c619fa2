"""Command-line entry points."""

import signal
import sys

# Under `python -m experiments...`, while the modules are imported: Ctrl-C ends the process without
# a traceback. `cli.parse_flags` gives Python's own handler back.
if sys.argv[:1] == ["-m"] and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
