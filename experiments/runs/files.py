"""Files of a run's folder: metrics.csv, JSON files, and the lock."""

import contextlib
import csv
import fcntl
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TextIO

from appo_jax.data import atomic
from appo_jax.types import InputError

Row = dict[str, Any]
# The last good update of a run, or of its reward model, whose numbers are no longer finite.
STOPPED = "stopped"
EVALUATED = "eval/done"  # the last row of an evaluation: with it, all of it is on disk
_COLUMNS = ("run", "update", "split", "metric", "value", "time")


class Watcher(Protocol):
    """Who is told of metrics.csv, after each change that is on disk."""

    def appended(self, rows: Sequence[Row]) -> None:
        """These rows are new."""

    def replaced(self) -> None:
        """Rows were dropped."""


class MetricsFile:
    """metrics.csv in long format: one metric of one run at one update in each row.

    `split` is "reward" or "train" (of the reward model or the policy: means over a chunk that ended
    at `update`), "eval", or "clock" (how long it took so far); `time` is in seconds since 1970.
    """

    def __init__(self, path: Path):
        self._path = path
        self.watchers: list[Watcher] = []
        self.rows = _read_rows(path) if path.exists() else []
        self._index()

    def keep(self, condition: Callable[[Row], bool]) -> None:
        """Drop all rows that don't meet the condition, from the file too."""
        before = len(self.rows)
        self.rows = [row for row in self.rows if condition(row)]
        self._index()
        lines = [dict(zip(_COLUMNS, _COLUMNS, strict=True)), *self.rows]
        with atomic.replacing(self._path) as partial, partial.open("w", newline="") as file:
            _writer(file).writerows(lines)
        if len(self.rows) < before:
            for watcher in self.watchers:
                watcher.replaced()

    def become(self, rows: Sequence[Row]) -> None:
        """Know the rows of another process's file, and leave one's own as it is."""
        self.rows = list(rows)
        self._index()

    def append(self, update: int, split: str, metrics: Mapping[int, Mapping[str, float]]) -> None:
        """Add a row for each metric of each run, and wait until they are on disk."""
        now = round(time.time(), 3)
        rows = [
            dict(zip(_COLUMNS, (run, update, split, name, value, now), strict=True))
            for run, named in metrics.items()
            for name, value in named.items()
        ]
        with self._path.open("a", newline="") as file:
            _writer(file).writerows(rows)
            file.flush()
            os.fsync(file.fileno())
        self.rows += rows
        self._add(rows)
        for watcher in self.watchers:
            watcher.appended(rows)

    def values(self, run: int, split: str, metric: str) -> dict[int, float]:
        """A metric's value at each update, ascending."""
        return dict(sorted(self._values.get((run, split, metric), {}).items()))

    def _index(self) -> None:
        self._values: dict[tuple[int, str, str], dict[int, float]] = {}
        self._add(self.rows)

    def _add(self, rows: Iterable[Row]) -> None:
        for row in rows:
            values = self._values.setdefault((row["run"], row["split"], row["metric"]), {})
            values[row["update"]] = row["value"]

    def last_update(self, run: int, split: str) -> int:
        """The last update of which there is a metric, 0 for none."""
        found = (max(values) for key, values in self._values.items() if key[:2] == (run, split))
        return max(found, default=0)

    def stopped_at(self, run: int) -> int | None:
        """The last good update of a run whose numbers are no longer finite, else None.

        0 where those of its reward model aren't.
        """
        if self.values(run, "reward", STOPPED):
            return 0
        return next((int(last) for last in self.values(run, "train", STOPPED).values()), None)


def _writer(file: TextIO) -> csv.DictWriter:
    return csv.DictWriter(file, _COLUMNS, lineterminator="\n")


def _read_rows(path: Path) -> list[Row]:
    types = {"run": int, "update": int, "split": str, "metric": str, "value": float, "time": float}
    try:
        whole = path.read_text().rpartition("\n")[0]  # a killed writer can leave part of a line
        return [
            {column: types[column](row[column]) for column in _COLUMNS}
            for row in csv.DictReader(whole.splitlines())
        ]
    except (KeyError, TypeError, ValueError, csv.Error) as error:
        raise InputError(
            f"{path}: not the metrics of a run ({error!r}), expected columns {','.join(_COLUMNS)}"
        ) from error


def write_json(path: Path, content: Any) -> None:
    """Write a JSON file; it appears whole or not at all."""
    with atomic.replacing(path) as partial:
        partial.write_text(json.dumps(content, indent=2) + "\n")


def read_json(path: Path) -> Any | None:
    """The content of a JSON file, None if there is none. Raises InputError if it isn't JSON."""
    if not path.exists():
        return None
    try:
        return json.loads(path.read_text())
    except (ValueError, RecursionError) as error:  # also bytes that are no text
        raise InputError(f"{path}: not JSON ({error}), expected a file that a run wrote") from error


@contextlib.contextmanager
def locked(folder: Path, flag: str = "--workdir") -> Iterator[None]:
    """Make `folder` and hold it for this process.

    Raises InputError, naming the flag that led here, if another one does.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / ".lock").open("w")
    except OSError as error:
        raise InputError(f"{flag}={folder}: can't be written to ({error.strerror})") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InputError(
                f"{flag}={folder}: another process is at work there, expected to have it alone"
            ) from error
        except OSError as error:  # of some network disks
            raise InputError(
                f"{flag}={folder}: can't be locked ({error.strerror}), expected a disk that knows "
                "locks: take a folder on a local one"
            ) from error
        yield
