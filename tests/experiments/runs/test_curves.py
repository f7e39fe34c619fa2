"""The learning curves of runs."""

import struct
from pathlib import Path

import matplotlib.figure
import numpy as np
import pytest

from experiments.runs import curves
from experiments.runs.results import Evaluation, RunResult


def run(lam: float, seed: int, *rates: float) -> RunResult:
    """A run of some evaluations."""
    return RunResult(
        *("folder", seed, "unfinished", "appo", "sweep-v3", "data", seed),
        settings={"lam": lam, "seed": seed},
        dataset_success_rate=25.0,
        num_updates=30,
        updates_done=10 * len(rates),
        stopped_at=None,
        success_rate=None,
        total_return=None,
        num_evaluations_averaged=0,
        evaluations=tuple(Evaluation(10 * n + 10, rate, rate, 1.0) for n, rate in enumerate(rates)),
        reward_accuracy=None,
        reward_accuracy_pairs=0,
        updates_per_second=None,
        wall_seconds=None,
    )


def test_a_line_and_a_band_for_each_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = []
    save = matplotlib.figure.Figure.savefig

    def saving(figure: matplotlib.figure.Figure, path: Path, **options: int) -> None:
        drawn.append(figure)
        save(figure, path, **options)

    monkeypatch.setattr(matplotlib.figure.Figure, "savefig", saving)
    path = tmp_path / "learning_curve.png"
    curves.plot(path, [run(0.1, 0, 20.0, 60.0), run(0.1, 1, 40.0), run(0.3, 0, 5.0)])
    content = path.read_bytes()
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    assert struct.unpack(">II", content[16:24]) == (900, 600)
    (axes,) = drawn[0].axes
    first, second, data = axes.lines
    assert (data.get_ydata()[0], data.get_linestyle()) == (25, "--")
    # Updates that both seeds came to: 10, where they have 20 and 40.
    np.testing.assert_array_equal(first.get_xydata(), [[10, 30]])
    np.testing.assert_array_equal(second.get_xydata(), [[10, 5]])
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert labels == ["lam 0.1, 2 seeds", "lam 0.3, seed 0", "data"]
    assert len(axes.collections) == 1
    assert axes.get_title() == "appo on sweep-v3"
