"""TensorBoard: a folder of event files for each run, written anew by each start."""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from tensorboardX import SummaryWriter

from experiments.tracking.tracker import TrackedRun, tag

FOLDER = "tensorboard"


class TensorBoard:
    """A tracker whose files hold what metrics.csv holds, in float32, the format's precision."""

    def __init__(self, folder: Path, runs: Sequence[TrackedRun]):
        """Begin with empty event files: those of an earlier start are told of once more."""
        shutil.rmtree(folder / FOLDER, ignore_errors=True)
        self._writers = [
            SummaryWriter(str(folder / FOLDER / run.name.replace("/", "_"))) for run in runs
        ]

    def log(
        self, run: int, split: str, update: int, metrics: Mapping[str, float], time: float
    ) -> None:
        """Write one event for each metric."""
        for name, value in metrics.items():
            self._writers[run].add_scalar(tag(split, name), value, update, walltime=time)

    def close(self) -> None:
        """Write what is left."""
        for writer in self._writers:
            writer.close()
