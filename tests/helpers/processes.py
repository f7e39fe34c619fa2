"""The processes that a command starts, seen from outside."""

import contextlib
import time
from collections.abc import Callable
from pathlib import Path


def wait_until(condition: Callable[[], bool], seconds: float) -> None:
    """Wait, but not for ever."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def members(session: int) -> list[int]:
    """The living processes of a session."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, _, number = path.read_text().rpartition(")")[2].split()[:4]
            if int(number) == session and state != "Z":
                found.append(int(path.parent.name))
    return found
