"""Signals that stop a command: held back where they must not cut, or noted for a good moment."""

import contextlib
import os
import signal
import stat
import threading
from collections.abc import Callable, Iterator
from typing import Any

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopped(Exception):
    """A signal ended the work at `place`; what it has is on disk."""

    def __init__(self, signal: signal.Signals, place: str):
        super().__init__(
            f"stopped by {signal.name} at {place}; the same command goes on from there"
        )
        self.exit_code = 128 + signal


@contextlib.contextmanager
def held() -> Iterator[None]:
    """Let the signals that stop a run wait for the end of the block.

    For reading and writing checkpoints: raised inside Orbax, KeyboardInterrupt comes out as another
    error. In another thread than the main one, where Python has no handlers, it does nothing.
    """
    waiting: list[int] = []
    with _handled_by(waiting.append):
        yield
    for came in waiting:
        signal.raise_signal(came)


@contextlib.contextmanager
def noted() -> Iterator[list[signal.Signals]]:
    """A list that holds the first such signal once it has come, for the block to act on.

    A second one raises KeyboardInterrupt at once. In another thread than the main one none comes.
    """
    came: list[signal.Signals] = []

    def note(number: int) -> None:
        if came:
            raise KeyboardInterrupt
        came.append(signal.Signals(number))

    with _handled_by(note):
        yield came


def end_at_once() -> None:
    """From now on such a signal ends the process where it is: what it does is but tidying up."""
    for number in _heeded():
        signal.signal(number, lambda number, _: os._exit(128 + number))


@contextlib.contextmanager
def _handled_by(act: Callable[[int], Any]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, _: Any) -> None:
        if number == signal.SIGHUP:
            _leave_terminal()
        act(number)

    before = {number: signal.signal(number, handle) for number in _heeded()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _heeded() -> list[signal.Signals]:
    # nohup has SIGHUP ignored, a shell's script what it puts in the background SIGINT.
    return [number for number in STOPPING if signal.getsignal(number) != signal.SIG_IGN]


def _leave_terminal() -> None:
    """Send what would go to the terminal nowhere: it is gone, and writing to it an error."""
    for stream in (1, 2):
        if stat.S_ISCHR(os.fstat(stream).st_mode):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream)
            os.close(nowhere)
