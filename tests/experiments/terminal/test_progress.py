"""What a terminal shows where nobody watches: lines, with a rate over the work alone."""

import sys
import time

import pytest

from experiments.runs.events import Began, Counter, Ended, Evaluated, Paused, Told
from experiments.terminal.progress import Terminal, duration


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The clock, to be moved by hand."""
    moment = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: moment[0])
    return moment


def test_a_stage_in_lines(now: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    terminal = Terminal(sys.stderr)
    count = Counter(terminal, "sweep", "steps")
    count(600, 1000)  # from an earlier start
    for done in (650, 690, 700, 750, 950, 1000):
        now[0] += 5
        count(done, 1000, "a note for the bar")
    terminal.close()
    # 50 steps in 5 s; 100 in 15 s; 350 in 25 s.
    assert capsys.readouterr() == (
        "",
        "sweep: 650 of 1,000 steps, 10.0 steps/s, about 35 s left\n"
        "sweep: 700 of 1,000 steps, 6.7 steps/s, about 45 s left\n"
        "sweep: 950 of 1,000 steps, 14.0 steps/s, about 4 s left\n"
        "sweep: 1,000 of 1,000 steps\n",
    )


def test_compiling_is_no_work(now: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    terminal = Terminal()
    count = Counter(terminal, "training", "updates")
    count(0, 1000)
    now[0] += 25
    terminal(Paused(20.0))
    count(100, 1000)  # in 5 s
    assert capsys.readouterr().out == (
        "training: 100 of 1,000 updates, 20.0 updates/s, about 45 s left\n"
    )


def test_sentences_and_scores(capsys: pytest.CaptureFixture[str]) -> None:
    terminal = Terminal()
    for event in (
        Told("labels: 5 pairs"),
        Began("training", 0, 10),
        Evaluated(5000, "eval/success_rate", 12.34),
        Evaluated(5000, "eval/success_rate", 12.34, again=True),  # told before
        Evaluated(10000, "eval/return", 3.21),
        Ended("training"),
    ):
        terminal(event)
    terminal.close()
    assert capsys.readouterr().out.splitlines() == [
        "labels: 5 pairs",
        "success at update 5,000: 12.3 %",
        "return at update 10,000: 3.2",
    ]


def test_times_for_a_person() -> None:
    assert [duration(seconds) for seconds in (8, 89, 91, 5399, 5400)] == [
        *("8 s", "89 s", "2 min", "90 min", "1.5 h")
    ]
