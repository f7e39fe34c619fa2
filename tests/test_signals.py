"""Ctrl-C around what must not be cut in two."""

import signal

import pytest

from experiments import signals


def test_signals_wait_for_the_end_of_the_block() -> None:
    before = [signal.getsignal(number) for number in signals.STOPPING]
    steps = []

    def work() -> None:
        with signals.held():
            signal.raise_signal(signal.SIGINT)
            steps.append("went on")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert steps == ["went on"]
    assert before == [signal.getsignal(number) for number in signals.STOPPING]


def test_errors_come_through() -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(ValueError, match="a bad file"), signals.held():
        raise ValueError("a bad file")
    assert signal.getsignal(signal.SIGINT) == before
    with signals.held():
        pass
