"""Two real processes train one grid; each is killed in turn, and one or two go on."""

import signal
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from appo_jax import policy
from experiments.runs import files
from experiments.terminal.joining import HEARTBEAT_SECONDS
from tests.helpers.processes import free_port
from tests.helpers.runs import TINY, Command, write_buffers

# Three runs: one of the rows of two processes is a repeat.
FLAGS = (*TINY, "--lam=0.03,0.1,0.3", "--dataset=medium-replay", "--data_dir=data")


def start(folder: Path, workdir: str, num_processes: int) -> list[Command]:
    """The command, or the same one for each of several processes."""
    flags = (*FLAGS, f"--workdir={workdir}")
    if num_processes == 1:
        return [Command(folder, *flags)]
    several = (f"--coordinator_address=localhost:{free_port()}", f"--num_processes={num_processes}")
    return [
        Command(folder, *flags, *several, f"--process_id={number}")
        for number in range(num_processes)
    ]


def finish(commands: list[Command]) -> None:
    for command in commands:
        status, lines, stderr = command.finish(600)
        assert status == 0, (lines, stderr)
        assert stderr == ""


def found(workdir: Path) -> tuple[list[tuple[Any, ...]], list[np.ndarray]]:
    """What metrics.csv holds, times aside, and every policy's parameters."""
    rows = sorted(
        (row["run"], row["update"], row["split"], row["metric"], row["value"])
        for row in files.MetricsFile(workdir / "metrics.csv").rows
        if row["split"] != "clock"
    )
    states = [policy.load_policy(workdir, run).state for run in policy.runs(workdir)]
    return rows, [np.asarray(leaf) for leaf in jax.tree.leaves(states)]


def assert_same(first: Path, second: Path) -> None:
    (rows, leaves), (other_rows, other_leaves) = found(first), found(second)
    assert rows == other_rows
    for leaf, other in zip(leaves, other_leaves, strict=True):
        np.testing.assert_array_equal(leaf, other)


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.parametrize(("victim", "resumed_with"), [(1, 1), (0, 2)])
def test_one_is_killed_and_the_others_end(tmp_path: Path, victim: int, resumed_with: int) -> None:
    write_buffers(tmp_path / "data")
    finish(start(tmp_path, "alone", 1))

    commands = start(tmp_path, "killed", 2)
    commands[0].wait_for("success at update 20")
    commands[victim].signal(signal.SIGKILL)
    began = time.monotonic()
    status, lines, stderr = commands[1 - victim].finish()
    print(f"process {victim} killed; the other ended after {time.monotonic() - began:.0f} s")
    assert time.monotonic() - began < HEARTBEAT_SECONDS + 30
    assert status == 1
    assert stderr.startswith(f"error: process {victim} of 2 is gone: killed"), (lines, stderr)
    assert len(stderr.splitlines()) == 1
    commands[victim].finish()

    assert files.MetricsFile(tmp_path / "killed" / "metrics.csv").last_update(0, "train") < 60
    finish(start(tmp_path, "killed", resumed_with))
    assert_same(tmp_path / "alone", tmp_path / "killed")


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_a_signal_to_one_stops_all(tmp_path: Path) -> None:
    write_buffers(tmp_path / "data")
    finish(start(tmp_path, "alone", 1))
    commands = start(tmp_path, "stopped", 2)
    commands[0].wait_for("success at update 0")
    commands[1].signal(signal.SIGTERM, whole_session=False)
    for command in commands:
        status, lines, stderr = command.finish()
        assert status == 128 + signal.SIGTERM, (lines, stderr)
        assert stderr.startswith("stopped by SIGTERM at update"), stderr
    finish(start(tmp_path, "stopped", 2))
    assert_same(tmp_path / "alone", tmp_path / "stopped")
