"""Event files hold what metrics.csv holds."""

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments.runs.experiment import Experiment
from experiments.runs.files import MetricsFile
from experiments.tracking.following import following
from tests.helpers import sweeps

pytest.importorskip("tensorboardX", reason="the extra `tensorboard` isn't installed")


@functools.cache
def runs() -> list[Experiment]:
    """Two, of which nothing but the settings is read."""
    flags = {"algorithm": "appo", "task": "sweep", "dataset": "medium-replay", "num_seeds": 2}
    return [one.run for one in sweeps.of_flags(**flags)]


def events(folder: Path) -> dict[tuple[str, str, int], tuple[float, float]]:
    """Value and time of each scalar, by run's folder, tag and step; none stands there twice."""
    from tensorboardX.proto.event_pb2 import Event

    found: dict[tuple[str, str, int], tuple[float, float]] = {}
    for path in (folder / "tensorboard").rglob("events.*"):
        data, at = path.read_bytes(), 0
        while at < len(data):  # a length, its checksum, an event, its checksum
            length = int.from_bytes(data[at : at + 8], "little")
            event: Any = Event.FromString(data[at + 12 : at + 12 + length])
            at += 16 + length
            for value in event.summary.value:
                key = (path.parent.name, value.tag, event.step)
                assert key not in found
                found[key] = (value.simple_value, event.wall_time)
    return found


def test_event_files_and_the_csv_agree(tmp_path: Path) -> None:
    metrics = MetricsFile(tmp_path / "metrics.csv")
    metrics.keep(lambda _: False)
    with following("tensorboard", runs(), metrics, tmp_path, print):
        metrics.append(5, "train", {0: {"loss": 0.1, "speed": 2.0}, 1: {"loss": float("nan")}})
        metrics.append(5, "eval", {0: {"eval/return": 4.0}})
    # A start that goes on from before the last row.
    with following("tensorboard", runs(), metrics, tmp_path, print):
        metrics.keep(lambda row: row["split"] == "train")
        metrics.append(5, "eval", {0: {"eval/return": 7.0}})
    found = events(tmp_path)
    again = MetricsFile(tmp_path / "metrics.csv").rows
    assert {(name, tag) for name, tag, _ in found} == {
        ("run 0, seed 0", "train/loss"),
        ("run 0, seed 0", "train/speed"),
        ("run 1, seed 1", "train/loss"),
        ("run 0, seed 0", "eval/return"),
    }
    assert len(found) == len(again) == 4
    for row in again:
        tag = row["metric"] if "/" in row["metric"] else f"train/{row['metric']}"
        value, time = found[(f"run {row['run']}, seed {row['run']}", tag, row["update"])]
        np.testing.assert_equal((value, time), (float(np.float32(row["value"])), row["time"]))
