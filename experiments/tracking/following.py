"""Trackers behind metrics.csv: they hear of rows that are on disk, and of no others."""

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from appo_jax.types import first_line
from experiments.runs.events import Report, Told
from experiments.runs.experiment import Experiment, differing, label, named_settings
from experiments.runs.files import MetricsFile, Row
from experiments.tracking import tracker
from experiments.tracking.tracker import Factory, TrackedRun, Tracker


@contextlib.contextmanager
def following(
    track: str, runs: Sequence[Experiment], metrics: MetricsFile, folder: Path, report: Report
) -> Iterator[None]:
    """Let the trackers that `track` names follow the metrics of a block.

    Raises InputError for a tracker that there isn't. One that fails ends with a warning; the runs
    go on, and metrics.csv has all that it misses.
    """
    factories = tracker.find_all(track)
    tracked = _tracked(runs)
    followers = [
        _Follower(name, factory, folder, tracked, metrics, report)
        for name, factory in factories.items()
    ]
    metrics.watchers.extend(followers)
    try:
        yield
        for follower in followers:
            follower.catch_up()
    finally:
        for follower in followers:
            follower.close()


def _tracked(runs: Sequence[Experiment]) -> list[TrackedRun]:
    settings = [named_settings(run.resolved()) for run in runs]
    names = differing(settings) or ["algorithm", "env_name", "seed"]
    return [
        TrackedRun(f"run {number}, {label(own, names)}", own) for number, own in enumerate(settings)
    ]


class _Follower:
    """A watcher of metrics.csv that tells one tracker; made anew where rows were dropped."""

    def __init__(
        self,
        name: str,
        factory: Factory,
        folder: Path,
        runs: Sequence[TrackedRun],
        metrics: MetricsFile,
        report: Report,
    ):
        self._name, self._factory, self._report = name, factory, report
        self._folder, self._runs, self._metrics = folder, runs, metrics
        self._tracker: Tracker | None = None
        self._has_failed = False

    def appended(self, rows: Sequence[Row]) -> None:
        if self._has_failed or not rows:
            return
        try:
            if self._tracker is None:
                self._tracker, rows = self._factory(self._folder, self._runs), self._metrics.rows
            for row, metrics in _gathered(rows):
                self._tracker.log(row["run"], row["split"], row["update"], metrics, row["time"])
        except Exception as error:  # whatever it is, the runs go on
            self._fail(error)

    def catch_up(self) -> None:
        """Tell of what earlier starts left, where this one had nothing new."""
        if self._tracker is None:
            self.appended(self._metrics.rows)

    def replaced(self) -> None:
        self.close()

    def close(self) -> None:
        found, self._tracker = self._tracker, None
        if found is not None:
            try:
                found.close()
            except Exception as error:
                self._fail(error)

    def _fail(self, error: Exception) -> None:
        self._has_failed = True
        said = first_line(error)
        self._report(Told(f"warning: tracker {self._name}: {said}; metrics.csv has everything"))


def _gathered(rows: Sequence[Row]) -> Iterator[tuple[Row, dict[str, float]]]:
    """The first row and the metrics of all rows of one run, split, update and time."""

    def place(row: Row) -> tuple[Any, ...]:
        return row["run"], row["split"], row["update"], row["time"]

    for _, group in itertools.groupby(rows, place):
        together = list(group)
        yield together[0], {row["metric"]: row["value"] for row in together}
