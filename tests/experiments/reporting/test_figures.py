"""Results against one setting: which runs share a line, and where its points lie."""

from pathlib import Path

import pytest

from experiments.reporting import figures
from experiments.reporting.figures import Drawing
from experiments.runs import results
from experiments.runs.results import RunResult
from tests.helpers import sweeps


def runs_of(folder: Path, **flags: object) -> list[RunResult]:
    flags = {"algorithm": "bc", "task": "sweep", "dataset": "medium-expert", **flags}
    sweeps.write(sweeps.of_flags(**flags), folder, lambda _: 50.0)
    return results.read_all([folder])[0]


def lines(drawing: Drawing) -> list[str]:
    return drawing.figure.axes[0].get_legend_handles_labels()[1]


def by_size(runs: list[RunResult]) -> list[Drawing]:
    return [one for one in figures.dependences(runs) if one.name.startswith("data-size")]


def test_data_that_differ_in_their_size_alone_are_a_line(tmp_path: Path) -> None:
    sizes = [50_000, 100_000]
    (one,) = by_size(runs_of(tmp_path / "one", dataset_size=sizes))
    assert lines(one) == ["bc"]
    (two,) = by_size(runs_of(tmp_path / "two", dataset_size=sizes, data_seed=[0, 1]))
    assert lines(two) == [
        f"bc, metaworld/<task>/medium-expert-n<size>-seed{seed}-v0" for seed in (0, 1)
    ]
    # Other data of the same size aren't other seeds.
    assert not by_size(runs_of(tmp_path / "three", data_seed=[0, 1]))


def test_foreign_data_are_no_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("appo_jax.data.minari_io.exists", lambda id, folder: True)
    runs = runs_of(tmp_path, dataset=["mine/small-n1-v0", "mine/large-n2-v0"])
    sized = [
        RunResult(**{**vars(run), "num_transitions": 1000 * place})
        for place, run in enumerate(runs, 1)
    ]
    assert not by_size(sized)


def test_a_lambda_of_zero_has_a_place_of_its_own(tmp_path: Path) -> None:
    (drawing,) = figures.dependences(runs_of(tmp_path, algorithm="appo", lam=[0.0, 0.01, 0.1]))
    (axes,) = drawing.figure.axes
    drawing.figure.canvas.draw()
    places = axes.transData.transform([(lam, 50) for lam in (0, 0.01, 0.1)])[:, 0]
    near, far = places[1] - places[0], places[2] - places[1]
    assert near == pytest.approx(far, rel=0.2)  # a decade each
    assert [text.get_text() for text in axes.get_xticklabels()] == ["0", "0.01", "0.1"]
