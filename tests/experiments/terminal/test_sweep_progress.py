"""One display for a whole sweep."""

import io
import time
from pathlib import Path

import pytest

from experiments.runs.events import Advanced, Began, Ended, Evaluated, Paused, Told
from experiments.sweeps import plan
from experiments.terminal.sweep_progress import Progress
from tests.helpers import sweeps


def test_counts_all_runs_and_tells_how_long_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    wanted = sweeps.of_flags(
        algorithm=["appo", "mr"],
        dataset="medium-replay",
        task="sweep",
        num_seeds=2,
        num_updates=1000,
    )
    lines = io.StringIO()
    progress = Progress(4000, lines)
    progress.plan(plan.make(wanted, tmp_path).grids)
    assert progress.seconds_left() is None
    progress.begin(0)
    progress(Told("data: some"))
    progress(Began("reward model (1000 labels)", 0, 10))
    for done in range(1, 60):
        progress(Advanced("reward model (1000 labels)", done, 100))
    progress(Began("training", 500, 1000, runs=2))  # an earlier start came half way
    now += 7
    progress(Paused(5))  # to compile
    progress(Advanced("training", 600, 1000))
    # 2 s for 100 updates of two runs: 0.01 s each. Left are 800 of these, and 2000 of MR, of which
    # nothing is known.
    assert progress.seconds_left() == pytest.approx(0.01 * 2800)
    progress(Evaluated(600, "eval/success_rate", 40.0))
    progress(Advanced("training", 1000, 1000))
    progress(Ended("training"))
    progress.begin(1)
    progress(Began("training", 0, 1000, runs=2))
    now += 1
    progress(Advanced("training", 100, 1000))
    assert progress.seconds_left() == pytest.approx(1 / 200 * 1800)
    progress.close()
    text = lines.getvalue()
    assert "  data: some" in text
    fits = [line for line in text.splitlines() if line.startswith("  reward model")]
    assert [line.split(")")[1] for line in fits] == [
        "",
        " 10 %",
        " 20 %",
        " 30 %",
        " 40 %",
        " 50 %",
    ]
    assert "sweep 30 %: grid 1 of 2 (appo, 2 runs), training" not in text
    assert "sweep 30 %: grid 1 of 2 (appo, 2 runs), about 28 s left" in text
    assert "sweep 50 %: grid 1 of 2 (appo, 2 runs), 40 % at 600" in text


def test_a_grid_that_is_tried_again_is_counted_anew(tmp_path: Path) -> None:
    wanted = sweeps.of_flags(algorithm="appo", dataset="medium-replay", task="sweep")
    lines = io.StringIO()
    progress = Progress(250_000, lines)
    for done in (100_000, 150_000):
        progress.plan(plan.make(wanted, tmp_path).grids)
        progress.begin(0)
        progress(Began("training", done, 250_000))
        progress(Advanced("training", done + 500, 250_000))
    assert "sweep 60 %" in lines.getvalue()
    assert "sweep 100 %" not in lines.getvalue()
