"""Weights & Biases: files of its own beside the run, which another process uploads meanwhile.

Training never talks to a server. wandb writes offline runs below `<folder>/wandb`; what can't be
uploaded while the command runs lies there for `wandb sync`. With WANDB_MODE=offline nothing is
uploaded. A start that goes on adds to the same runs; where the one before it was killed, it tells
once more of all since the last clean end, under the same updates.
"""

import contextlib
import os
import subprocess
import sys
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import wandb

from experiments.runs import files
from experiments.tracking.tracker import TrackedRun, tag

FOLDER = "wandb"
PROJECT = "appo-jax"  # unless WANDB_PROJECT names another
_PATIENCE = 5.0  # seconds for the last rows to be uploaded


class WeightsAndBiases:
    """A tracker of one wandb run for each run."""

    def __init__(self, folder: Path, runs: Sequence[TrackedRun]):
        """Look at what was told; the wandb runs begin, or go on, with the first new row."""
        self._folder, self._tracked = folder, runs
        self._file = folder / FOLDER / "told.json"
        self._known: list[dict[str, Any]] = files.read_json(self._file) or [
            {"id": uuid.uuid4().hex[:8], "told": {}} for _ in runs
        ]
        self._before = [dict(one["told"]) for one in self._known]
        self._runs: list[Any] = []
        self._upload: subprocess.Popen[bytes] | None = None

    def log(
        self, run: int, split: str, update: int, metrics: Mapping[str, float], time: float
    ) -> None:
        """Log what wasn't logged before the last clean end."""
        before, told = self._before[run], self._known[run]["told"]
        named = {tag(split, name): value for name, value in metrics.items()}
        new = {name: value for name, value in named.items() if update > before.get(name, -1)}
        if not new:
            return
        if not self._runs:
            self._begin()
        self._runs[run].log({"update": update, "time": time, **new})
        told.update(dict.fromkeys(new, update))

    def _begin(self) -> None:
        self._file.parent.mkdir(exist_ok=True)
        files.write_json(self._file, self._known)  # the ids: a killed run goes on with them
        pairs = zip(self._tracked, self._known, strict=True)
        self._runs = [_begin(self._folder, run, one["id"]) for run, one in pairs]
        self._upload = _upload([Path(run.dir).parent for run in self._runs], self._file.parent)

    def close(self) -> None:
        """End the wandb runs. Raises TimeoutError where not all of them is uploaded."""
        if not self._runs:
            return
        for run in self._runs:
            run.finish()
        files.write_json(self._file, self._known)
        if self._upload is not None and not _ends_well(self._upload):
            raise TimeoutError(
                f"not all of it is uploaded (see {self._file.parent / 'upload.log'}); `wandb sync "
                f"{self._file.parent}/offline-run-*` does that"
            )


def _begin(folder: Path, run: TrackedRun, id: str) -> Any:
    settings = wandb.Settings(
        console="off",  # the terminal is the command's
        silent=True,
        reinit="create_new",
        x_disable_machine_info=True,
        x_disable_stats=True,
        x_save_requirements=False,
        disable_git=True,
        disable_code=True,
    )
    started = wandb.init(
        mode="offline",
        project=os.environ.get("WANDB_PROJECT", PROJECT),
        dir=str(folder),
        id=id,
        name=run.name,
        config={name: value for name, value in run.settings.items() if value is not None},
        settings=settings,
    )
    started.define_metric("update")
    started.define_metric("*", step_metric="update")
    return started


def _upload(folders: Sequence[Path], log: Path) -> subprocess.Popen[bytes] | None:
    """The process that uploads runs while they are written; None where that isn't wanted."""
    if os.environ.get("WANDB_MODE", "online") != "online":
        return None
    # Out of the terminal's reach: a Ctrl-C shall end the run, not the upload of its last rows.
    with (log / "upload.log").open("ab") as file:
        return subprocess.Popen(
            [sys.executable, "-m", "experiments.tracking.upload", *map(str, folders)],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )


def _ends_well(process: subprocess.Popen[bytes]) -> bool:
    with contextlib.suppress(subprocess.TimeoutExpired):
        return process.wait(_PATIENCE) == 0
    process.kill()
    process.wait()
    return False
