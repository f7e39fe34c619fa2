"""Tiny data, tiny flags, and the command, for the tests of `experiments.train` and its parts."""

import contextlib
import hashlib
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from absl import flags

from appo_jax import checkpoint, evaluation, policy
from experiments import train
from experiments.runs import files
from experiments.runs.events import Evaluated, Event, Told
from experiments.runs.experiment import Execution, Experiment
from tests.helpers.processes import members, wait_until

TASK = "button-press-topdown"
AGENTS, EPISODES, HORIZON = 2, 2, 500
SIZE = AGENTS * EPISODES * HORIZON
TINY = (
    f"--task={TASK}",
    f"--dataset_size={SIZE}",
    "--num_feedback=40",
    "--segment_length=5",
    "--tie_threshold=1",
    "--hidden_layers=1",
    "--hidden_dim=16",
    "--batch_size=8",
    "--num_pairs=4",
    "--reward_hidden_layers=1",
    "--reward_hidden_dim=16",
    "--reward_num_epochs=2",
    "--num_updates=60",
    "--eval_interval=20",
    "--chunk_updates=5",
    "--eval_episodes=2",
    "--num_workers=1",
)


def write_buffers(data_dir: Path, seed: int = 0, task: str = f"{TASK}-v3") -> None:
    """LiRE's layout, random: two agents of two episodes, rewards made up from the actions."""
    folder = data_dir / task
    folder.mkdir(parents=True)
    generator = np.random.default_rng(seed)
    for agent in range(AGENTS):
        steps = SIZE // AGENTS
        observations = generator.normal(size=(steps + 1, 39)).astype(np.float32)
        actions = generator.uniform(-1, 1, (steps, 4)).astype(np.float32)
        next_observations = observations[1:].copy()
        next_observations[HORIZON - 1 :: HORIZON] += 1  # the next episode begins with a reset
        buffer = {
            "observations": observations[:-1],
            "next_observations": next_observations,
            "actions": actions,
            "rewards": 5 + 5 * actions[:, 0],
            "dones": np.zeros(steps),
        }
        with (folder / f"saved_replay_buffer_1000000_seed{agent}.pkl").open("wb") as file:
            pickle.dump(buffer, file)


def parse(*arguments: str) -> tuple[list[Experiment], Execution]:
    """The runs that the command line asks for; the flags are this call's own."""
    values = flags.FlagValues()
    train.define_flags(values, ["train", *arguments])
    assert values(["train", *arguments]) == ["train"]
    return train.experiments_from_flags(values)


def tiny(algorithm: str) -> list[str]:
    """The tiny flags that an algorithm has."""
    values = flags.FlagValues()
    train.define_flags(values, ["train", f"--algorithm={algorithm}"])
    names = {flag: flag.removeprefix("--").split("=")[0] for flag in (*TINY, "--crop_rows=4")}
    return [*(flag for flag, name in names.items() if name in values), f"--algorithm={algorithm}"]


def metadata(workdir: Path) -> dict[str, Any]:
    """What lies beside the arrays of a run's last checkpoint."""
    folder = workdir / "checkpoints" / "policy"
    update = checkpoint.updates(folder)[-1]
    return files.read_json(folder / str(update) / "metadata" / "metadata")


def result(workdir: Path) -> tuple[str, list[files.Row]]:
    """A run's final state, as a digest, and its metrics without times.

    Sorted: an evaluation's rows come when they come.
    """
    rows = files.MetricsFile(workdir / "metrics.csv").rows
    rows = [row for row in rows if row["split"] != "clock"]
    rows = sorted(rows, key=lambda row: (row["update"], row["split"], row["metric"]))
    return metadata(workdir)["digest"], [{**row, "time": None} for row in rows]


class FakeEvaluation:
    """An evaluation that is over after some looks at it."""

    looks = 2

    def __init__(
        self, _: Any, trained: policy.Policy, env: str, seed: int, update: int, n: int, stop: bool
    ):
        scales = vars(trained.normaliser), vars(trained.actions)
        leaves = jax.tree.leaves((trained.state, scales))
        made_of = b"".join(np.asarray(leaf).tobytes() for leaf in leaves)
        made_of += f"{env} {seed} {update} {n} {stop}".encode()
        self._outcome = hashlib.sha256(made_of).digest()
        self._left = self.looks if update else 0

    def done(self) -> bool:
        self._left -= 1
        return self._left < 0

    def result(self) -> evaluation.Episodes:
        numbers = np.frombuffer(self._outcome, np.uint8)
        columns = numbers.astype(float)[:, None]
        return evaluation.Episodes(
            numbers[:16] > 128, numbers[16:] > 128, columns[:, 0], numbers < 0, columns
        )


def print_told(event: Event) -> None:
    """A report that prints sentences and scores, for `capsys`."""
    match event:
        case Told(text):
            print(text)
        case Evaluated(update, metric, score):
            print(f"{metric} at update {update}: {score}")


def signal_at(
    patch: pytest.MonkeyPatch, update: int, *numbers: signal.Signals, split: str = "train"
) -> None:
    """Raise signals once the metrics of the chunk that ends at `update` are on disk."""
    append = files.MetricsFile.append

    def appending(file: files.MetricsFile, at: int, *args: Any) -> None:
        append(file, at, *args)
        if (at, args[0]) == (update, split):
            for number in numbers:
                signal.raise_signal(number)

    patch.setattr(files.MetricsFile, "append", appending)


def contents(folder: Path) -> dict[Path, bytes]:
    """Every file below a folder."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


class Command:
    """`python -m experiments.train`, or another, in a session of its own, in a folder."""

    def __init__(self, folder: Path, *arguments: str, name: str = "train"):
        self.lines: list[str] = []
        self._process = subprocess.Popen(
            [sys.executable, "-m", f"experiments.{name}", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=folder,
            start_new_session=True,
        )

    def wait_for(self, text: str) -> None:
        """Read stdout up to a line with `text`."""
        assert self._process.stdout
        for line in self._process.stdout:
            self.lines.append(line.rstrip("\n"))
            if text in line:
                return
        raise AssertionError(f"ended without {text!r}: {self.lines} {self._process.stderr}")

    def signal_after(
        self, seconds: float, number: signal.Signals, whole_session: bool = True
    ) -> str | None:
        """Wait and send a signal; the last line of stdout so far, None if it came too late."""
        assert self._process.stdout
        deadline = time.monotonic() + seconds
        read = threading.Thread(
            target=lambda: self.lines.extend(line.rstrip("\n") for line in self._process.stdout)
        )
        read.start()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(deadline - time.monotonic())
        late = self._process.poll() is not None
        if not late:
            self.signal(number, whole_session)
        last = self.lines[-1] if self.lines else ""
        read.join()
        return None if late else last

    def signal(self, number: signal.Signals, whole_session: bool = True) -> None:
        """Send a signal to all processes, as a terminal does for Ctrl-C, or to the main one."""
        (os.killpg if whole_session else os.kill)(self._process.pid, number)

    def finish(self, seconds: float = 120) -> tuple[int, list[str], str]:
        """Exit status, lines of stdout, stderr; fails if a process is left behind."""
        try:
            stdout, stderr = self._process.communicate(timeout=seconds)
            wait_until(lambda: not members(self._process.pid), 5)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        return self._process.returncode, self.lines + stdout.splitlines(), stderr
