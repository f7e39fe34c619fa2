"""What the commands share: their flags are parsed in one way, and errors are one sentence."""

import os
import re
import signal
import sys
from collections.abc import Sequence

from absl import flags


def available_cores() -> int:
    """Cores that this process may use; fewer than the machine's under taskset or in a container."""
    if hasattr(os, "sched_getaffinity"):  # Linux alone has it
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def parse_flags(argv: Sequence[str]) -> list[str]:
    """Parse flags; a bad one ends the process with one sentence that says what was expected."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # see experiments/__init__.py
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        rest = flags.FLAGS(argv)
    except flags.Error as error:
        named = re.match(r"flag --(\w+)=", str(error))
        expected = f", expected: {flags.FLAGS[named.group(1)].help}" if named else ""
        sys.exit(f"{error}{expected}")
    if rest[1:]:
        sys.exit(
            f"found {' '.join(rest[1:])!r} after the flags, expected flags only (--task=sweep)"
        )
    return rest
