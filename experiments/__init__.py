"""Command-line entry points."""

import os
import signal
import sys

# A standard stream that is closed (`>&-`) leads nowhere: else the next file that is opened would
# take its number, and get what is printed.
while (_number := os.open(os.devnull, os.O_RDWR)) <= 2:
    os.set_inheritable(_number, True)
os.close(_number)
sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)

# Under `python -m experiments...`, while the modules are imported: Ctrl-C ends the process without
# a traceback. `cli.run` gives Python's own handler back.
if sys.argv[:1] == ["-m"] and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
