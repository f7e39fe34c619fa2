"""What trackers hear, and what becomes of one that fails."""

import functools
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from appo_jax.types import InputError
from experiments.runs import runner
from experiments.runs.events import Event, Told
from experiments.runs.experiment import Execution, Experiment
from experiments.runs.files import MetricsFile
from experiments.tracking import following, tracker
from experiments.tracking.tracker import TrackedRun
from tests.helpers import sweeps


@functools.cache
def runs() -> list[Experiment]:
    """Two, of which nothing but the settings is read."""
    flags = {"algorithm": "appo", "task": "sweep", "dataset": "medium-replay", "num_seeds": 2}
    return [one.run for one in sweeps.of_flags(**flags)]


heard: list[tuple[object, ...]] = []


class Own:
    """A tracker as a user writes it."""

    def __init__(self, folder: Path, runs: Sequence[TrackedRun]):
        heard.append(("begin", folder, [run.name for run in runs]))

    def log(
        self, run: int, split: str, update: int, metrics: Mapping[str, float], time: float
    ) -> None:
        heard.append((run, split, update, dict(metrics)))

    def close(self) -> None:
        heard.append(("close",))


class Failing(Own):
    def log(self, *_: object) -> None:
        raise RuntimeError("no disk\nmore")


@pytest.fixture(autouse=True)
def _module() -> Iterator[None]:
    sys.modules["own_trackers"] = sys.modules[__name__]
    heard.clear()
    yield
    del sys.modules["own_trackers"]


def written(folder: Path) -> MetricsFile:
    metrics = MetricsFile(folder / "metrics.csv")
    metrics.keep(lambda _: False)
    return metrics


def test_each_row_is_told_once_it_is_on_disk(tmp_path: Path) -> None:
    metrics = written(tmp_path)
    told: list[Event] = []
    with following.following("own_trackers:Own", runs(), metrics, tmp_path, told.append):
        assert not heard
        metrics.append(5, "train", {0: {"loss": 1.0, "speed": 2.0}, 1: {"loss": 3.0}})
        assert heard == [
            ("begin", tmp_path, ["run 0, seed 0", "run 1, seed 1"]),
            (0, "train", 5, {"loss": 1.0, "speed": 2.0}),
            (1, "train", 5, {"loss": 3.0}),
        ]
        metrics.append(5, "eval", {0: {"eval/return": 4.0}})
        assert heard[-1] == (0, "eval", 5, {"eval/return": 4.0})
    assert heard[-1] == ("close",)
    assert not told


def test_a_start_that_goes_on_tells_of_all(tmp_path: Path) -> None:
    before = written(tmp_path)
    before.append(5, "train", {0: {"loss": 1.0}})
    before.append(9, "train", {0: {"loss": 2.0}})
    metrics = MetricsFile(tmp_path / "metrics.csv")
    with following.following("own_trackers:Own", runs(), metrics, tmp_path, print):
        metrics.keep(lambda row: row["update"] <= 5)
        metrics.append(7, "train", {0: {"loss": 3.0}})
        assert heard[1:] == [(0, "train", 5, {"loss": 1.0}), (0, "train", 7, {"loss": 3.0})]
        # Rows that were told of and dropped then: a new one hears what is left.
        metrics.keep(lambda row: row["update"] <= 5)
        metrics.append(8, "train", {0: {"loss": 4.0}})
        assert heard[3] == ("close",)
        assert heard[5:] == [(0, "train", 5, {"loss": 1.0}), (0, "train", 8, {"loss": 4.0})]


def test_a_finished_run_is_told_of_when_it_is_asked_for(tmp_path: Path) -> None:
    written(tmp_path).append(5, "train", {1: {"loss": 1.0}})
    metrics = MetricsFile(tmp_path / "metrics.csv")
    with following.following("own_trackers:Own", runs(), metrics, tmp_path, print):
        pass
    assert heard[1:] == [(1, "train", 5, {"loss": 1.0}), ("close",)]
    heard.clear()
    with (
        pytest.raises(InputError),
        following.following("own_trackers:Own", runs(), metrics, tmp_path, print),
    ):
        raise InputError("no data")
    assert not heard


def test_one_that_fails_ends_with_a_warning(tmp_path: Path) -> None:
    metrics = written(tmp_path)
    told: list[Event] = []
    names = "own_trackers:Failing, own_trackers:Own"
    with following.following(names, runs(), metrics, tmp_path, told.append):
        metrics.append(5, "train", {0: {"loss": 1.0}})
        metrics.append(6, "train", {0: {"loss": 1.0}})
    assert told == [
        Told("warning: tracker own_trackers:Failing: no disk; metrics.csv has everything")
    ]
    assert [one[2] for one in heard if one[0] == 0] == [5, 6]
    assert len(metrics.rows) == 2


def test_trackers_that_there_are_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    for name, expected in {
        "tensorbord": "tracker 'tensorbord': expected tensorboard, wandb, or module:name of your",
        "no_module:x": "tracker 'no_module:x': No module named 'no_module', expected a module th",
        "own_trackers:Other": "has no attribute 'Other', expected a module that has it",
        "own_trackers:heard": r"tracker 'own_trackers:heard': found \[\], expected a func",
        "wandb": r"tracker 'wandb': .*wandb.*, expected what `pip install 'appo-jax\[wandb\]'` ad",
    }.items():
        with pytest.raises(InputError, match=expected):
            tracker.find(name)
    # Before any work.
    execution = Execution(workdir=tmp_path, data_dir=tmp_path, track="tensorbord")
    with pytest.raises(InputError, match="tracker 'tensorbord': expected"):
        runner.run(runs(), execution)
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


def test_tags_keep_splits_apart() -> None:
    assert tracker.tag("train", "critic/loss") == "train/critic/loss"
    assert tracker.tag("eval", "eval/return") == "eval/return"
    assert tracker.tag("reward", "reward/loss") == "reward/loss"


def test_the_tracker_of_the_documents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (Path(__file__).parents[3] / "docs" / "running.md").read_text()
    names: dict[str, object] = {}
    exec(page.split("<!-- a tracker -->\n```python\n")[1].split("```")[0], names)
    monkeypatch.setitem(globals(), "Loud", names["Loud"])
    metrics = written(tmp_path)
    with following.following("own_trackers:Loud", runs(), metrics, tmp_path, print):
        metrics.append(5, "train", {0: {"loss": 1.0}})
        metrics.append(5, "eval", {0: {"eval/return": 4.0}})
    assert capsys.readouterr().out == "run 0, seed 0 5 {'eval/return': 4.0}\n"
