"""Ctrl-C around what must not be cut in two."""

import contextlib
import signal
from collections.abc import Iterator

STOPPING = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def held() -> Iterator[None]:
    """Let the signals that stop a run wait for the end of the block.

    For reading and writing checkpoints: raised inside Orbax, KeyboardInterrupt comes out as another
    error. Works in the main thread only.
    """
    waiting: list[int] = []
    handlers = {
        number: signal.signal(number, lambda number, _: waiting.append(number))
        for number in STOPPING
    }
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    for came in waiting:
        signal.raise_signal(came)
