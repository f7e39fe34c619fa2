"""Signals around what must not be cut in two, and those that a loop acts on."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from experiments.runs import signals


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


def test_the_first_signal_is_noted_and_the_second_acts_at_once() -> None:
    before = [signal.getsignal(number) for number in signals.STOPPING]
    with signals.noted() as came:
        assert came == []
        signal.raise_signal(signal.SIGTERM)
        assert came == [signal.SIGTERM]
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        assert came == [signal.SIGTERM]
    assert before == [signal.getsignal(number) for number in signals.STOPPING]


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT])
def test_a_signal_that_is_ignored_stays_so(number: signal.Signals) -> None:
    before = signal.signal(number, signal.SIG_IGN)  # as nohup, or a script's `&`, does
    try:
        with signals.noted() as came, signals.held():
            signal.raise_signal(number)
        assert came == []
        assert signal.getsignal(number) == signal.SIG_IGN
    finally:
        signal.signal(number, before)


_HANG_UP = """
import os, signal
from experiments.runs import signals
terminal, other = os.openpty()
os.dup2(other, 1)
with signals.noted() as came:
    os.close(terminal)
    signal.raise_signal(signal.SIGHUP)
    os.write(1, b"lost")
    os.write(2, b"kept")
assert came == [signal.SIGHUP]
"""


def test_what_is_printed_after_a_hang_up_goes_nowhere() -> None:
    done = subprocess.run([sys.executable, "-c", _HANG_UP], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "kept")


def test_the_end_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    before = {number: signal.getsignal(number) for number in signals.STOPPING}
    codes: list[int] = []
    monkeypatch.setattr(os, "_exit", codes.append)
    try:
        signals.end_at_once()
        for number in signals.STOPPING:
            signal.raise_signal(number)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert codes == [130, 143, 129]


def test_stopped_tells_where() -> None:
    stopped = signals.Stopped(signal.SIGTERM, "update 1,000")
    assert str(stopped).startswith("stopped by SIGTERM at update 1,000; the same command goes on")
    assert stopped.exit_code == 143


def test_in_another_thread_python_has_no_handlers() -> None:
    before = [signal.getsignal(number) for number in signals.STOPPING]
    found = []

    def work() -> None:
        with signals.held(), signals.noted() as came:
            found.append([signal.getsignal(number) for number in signals.STOPPING])
            found.append(list(came))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [before, []]
