"""Processes: those that a command starts, seen from outside, and a pool without any."""

import contextlib
import socket
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any


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


def free_port() -> int:
    """A port that nobody has at the moment."""
    with socket.create_server(("", 0)) as server:
        return int(server.getsockname()[1])


class InTurn(Executor):
    """In place of a pool of workers: what is submitted is done at once, in this process."""

    def __init__(self, num_workers: int = 1):
        pass

    def submit(self, call: Any, /, *args: Any, **kwargs: Any) -> Future:
        future: Future = Future()
        try:
            future.set_result(call(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future
