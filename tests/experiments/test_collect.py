"""`python -m experiments.collect` as a user types it, and as a user stops it."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from absl.flags import FlagValues

from appo_jax.collect import sac, scripted
from appo_jax.collect.replay_collection import Recipe
from appo_jax.data import minari_io
from appo_jax.types import InputError
from experiments import collect
from experiments.collecting import sac_collection, scripted_collection
from experiments.terminal.cli import parse_flags
from tests.helpers.processes import members, wait_until

ID = "metaworld/drawer-open-v3/medium-expert-n1000-seed2-v0"


def command(*flags: str) -> list[str]:
    return [sys.executable, "-m", "experiments.collect", *flags]


def run(*flags: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*flags), capture_output=True, text=True, timeout=120)


def parsed(*arguments: str) -> FlagValues:
    values = FlagValues()
    line = ["collect", *arguments]
    collect.define_flags(values, line)
    parse_flags(values, line)
    return values


def test_collects_saves_and_tells(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--task=drawer-open-v2", "--size=1000", "--seed=2", f"--data_dir={tmp_path}"]
    first = run(*flags, "--num_workers=1")
    assert first.returncode == 0, first.stderr
    assert ID in first.stdout
    assert str(tmp_path / ID) in first.stdout
    assert "epsilon-greedy" in first.stdout
    assert "runs as drawer-open-v3" in first.stderr
    assert "1,000 of 1,000 steps" in first.stderr
    assert len(first.stderr.splitlines()) < 15
    dataset = minari_io.load(ID, tmp_path)
    assert dataset.num_transitions == 1000
    assert dataset.digest() in first.stdout

    collect.main(parsed(*flags))
    assert capsys.readouterr().out.startswith(f"exists already: {ID}")
    again = scripted_collection.collect_and_save(
        *("drawer-open", "medium-expert", 1000, 2, str(tmp_path), 1),
        lambda *_: pytest.fail("work began"),
    )
    assert again.digest() == dataset.digest()


def test_what_is_there_at_first_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def collecting(*arguments: Any) -> None:
        arguments[-1](500, 1000)
        raise InterruptedError

    monkeypatch.setattr(scripted, "collect", collecting)
    reports: list[tuple[int, int]] = []
    with pytest.raises(InterruptedError):
        scripted_collection.collect_and_save(
            *("sweep", "medium-expert", 1000, 0, str(tmp_path), 1),
            lambda *report: reports.append(report),
        )
    assert reports == [(0, 1000), (500, 1000)]


def test_a_disk_without_room_is_told_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=2_000_000))
    with pytest.raises(InputError, match=r"takes about 22 MB, .* has room for 2 MB"):
        scripted_collection.collect_and_save(
            "sweep", "medium-expert", 100_000, 0, str(tmp_path), 1, lambda *_: pytest.fail("began")
        )
    with pytest.raises(InputError, match=r"takes about 155 MB, .* has room for 2 MB"):
        sac_collection.collect_and_save(
            Recipe("sweep-v3", 300_000, 0), str(tmp_path), lambda *_: pytest.fail("began"), print
        )
    assert not list(tmp_path.glob("**/.*"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--task is missing"),
        (["--task=swep"], "--task: task 'swep'"),
        (["--task=sweep", "--dataset=medium"], "--dataset=medium: value should be one of <medium-"),
        (["--task=sweep", "--size=501"], "--size: size is 501, expected a positive multiple of 5"),
        (["--task=sweep", "--size=0"], "--size=0: expected a whole number from 1"),
        (["--task=sweep", "--size=many"], "--size=many: .*, expected: transitions in all"),
        (["--task=sweep", "--szie=500"], "Unknown command line flag 'szie'. Did you mean: size"),
        (["--task=sweep", "leftover"], "found 'leftover' after the flags, expected flags only"),
        (["--task=reach"], "--size is missing, expected a number: reach-v3 is not in the paper"),
        (["--task=sweep", f"--seed={2**31}"], "--seed=2147483648: expected a whole number from 0"),
        (["--task=sweep", "--num_workers=0"], "--num_workers=0: expected a whole number from 1"),
        (["--task=sweep", "--env=Hopper-v5"], "--env: given with --dataset=medium-expert"),
        (["--task=sweep", "--num_seeds=2"], "--num_seeds: given with --dataset=medium-expert"),
        (["--task=sweep", "--batch_size=2"], "--batch_size: given with --dataset=medium-expert"),
        (["--task=sweep", "--updates_per_step=1"], "--updates_per_step: given with --dataset=medi"),
    ],
)
def test_bad_flags(arguments: list[str], message: str) -> None:
    with pytest.raises(InputError, match=f"^{message}"):
        collect.expert_from_flags(parsed(*arguments))


def test_a_flag_that_sac_data_do_not_read() -> None:
    arguments = ("--task=sweep", "--dataset=medium-replay", "--num_workers=2")
    with pytest.raises(InputError, match="^--num_workers: given with --dataset=medium-replay, exp"):
        collect.replay_from_flags(parsed(*arguments))


def test_the_papers_size_is_the_default() -> None:
    name, size, seed, _ = collect.expert_from_flags(parsed("--task=sweep-v2"))
    assert (name, size, seed) == ("sweep-v3", 2_100_000, 0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--task="], "--task: task ''"),
        (["--task=sweep", "--env=Hopper-v5"], "--task=sweep and --env=Hopper-v5: expected"),
        ([], "--task=None and --env=None: expected one of the two"),
        (
            ["--env=sweep-v3"],
            "--env=sweep-v3: .* is another kind's, expected --task=sweep",
        ),
        (["--env=Hopper-v5"], "--size is missing"),
        (["--task=reach"], "--size is missing, expected a number: reach-v3 is not in the pap"),
        (["--task=sweep", "--size=1000"], "--size: size is 1000, expected .* of 1500"),
        (["--task=sweep", "--num_seeds=0"], "--num_seeds=0: expected a whole number from 1"),
        (["--task=sweep", "--batch_size=-1"], "--batch_size=-1: expected a whole number from 1"),
        (["--task=sweep", "--batch_size=3000000"], "--batch_size=3000000: expected a whole number"),
        (["--task=sweep", "--updates_per_step=nan"], "--updates_per_step=nan: expected"),
        (["--task=sweep", "--updates_per_step=0"], "--updates_per_step=0.0: expected"),
        (["--task=sweep", "--seed=-1"], "--seed=-1: expected a whole number from 0"),
        (["--task=sweep", f"--seed={2**31}"], "--seed=2147483648: expected a whole number from 0"),
    ],
)
def test_bad_flags_of_medium_replay(arguments: list[str], message: str) -> None:
    with pytest.raises(InputError, match=f"^{message}"):
        collect.replay_from_flags(parsed("--dataset=medium-replay", *arguments))


def test_the_papers_set_is_the_default() -> None:
    recipe = collect.replay_from_flags(parsed("--dataset=medium-replay", "--task=sweep-v2"))
    assert recipe == Recipe("sweep-v3", 2_100_000, 0, 3, 1.0, 5000, sac.Config())
    assert recipe.num_steps == 700_000
    assert sac_collection.dataset_id(recipe) == (
        "metaworld/sweep-v3/medium-replay-n2100000-seed0-v0"
    )


def test_every_flag_of_medium_replay_acts() -> None:
    flags = ["--dataset=medium-replay", "--env=Pendulum-v1", "--size=800", "--seed=4"]
    flags += ["--num_seeds=2", "--updates_per_step=0.5", "--batch_size=64"]
    expected = Recipe("Pendulum-v1", 800, 4, 2, 0.5, config=sac.Config(batch_size=64))
    assert collect.replay_from_flags(parsed(*flags)) == expected


def test_a_bad_folder_is_told_before_the_work(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InputError, match="expected a folder that can be written to"):
        collect.main(parsed("--task=sweep", "--size=500", "--data_dir=/dev/null"))
    assert capsys.readouterr().err == "sweep runs as sweep-v3\n"


@contextlib.contextmanager
def started(*flags: str) -> Iterator[subprocess.Popen[str]]:
    """The command in a session of its own, of which nothing is left at the end."""
    process = subprocess.Popen(
        command(*flags), stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def stop(process: subprocess.Popen[str], number: signal.Signals) -> str:
    """Send a signal, see that all processes end, and return what was left to read of stderr."""
    if number == signal.SIGINT:
        os.killpg(process.pid, number)  # a terminal's Ctrl-C reaches the workers, too
    else:
        process.kill()
    process.wait(timeout=60)  # workers leave once they have imported, which takes its time
    wait_until(lambda: not members(process.pid), 60)
    assert process.stderr is not None
    return process.stderr.read()


# Busy workers outlive no killed parent: tests/test_workers.py.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("when", "number"),
    [
        ("starting", signal.SIGINT),
        ("starting", signal.SIGKILL),
        ("collecting", signal.SIGINT),
    ],
)
def test_stopped(tmp_path: Path, when: str, number: signal.Signals) -> None:
    data_dir = tmp_path / "data"
    flags = ["--task=drawer-open", "--size=10000", f"--data_dir={data_dir}", "--num_workers=2"]
    with started(*flags) as process:
        assert process.stderr is not None
        wait_until(lambda: len(members(process.pid)) >= 3, 60)  # workers, and their tracker
        if when == "starting":
            time.sleep(0.3)  # the first worker imports
        else:
            line = process.stderr.readline()
            while "of 10,000 steps" not in line:
                assert line, "ended before it collected"
                line = process.stderr.readline()
        error = stop(process, number)
    if number == signal.SIGINT:
        assert "Traceback" not in error
        assert process.returncode == 130
        assert error.splitlines()[-1] == "interrupted; nothing was saved"
    assert minari_io.local_ids(data_dir) == []


REPLAY_ID = "gymnasium/Pendulum-v1/medium-replay-n8000-seed1-v0"


def replay_flags(data_dir: Path) -> list[str]:
    return [
        *("--env=Pendulum-v1", "--dataset=medium-replay", "--size=8000", "--seed=1"),
        *("--num_seeds=1", "--batch_size=8", "--updates_per_step=0.1", f"--data_dir={data_dir}"),
    ]


@pytest.mark.slow
def test_medium_replay_goes_on_where_it_was_stopped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    collect.main(parsed(*replay_flags(tmp_path / "whole")))
    whole = capsys.readouterr()
    assert "1 SAC agents in Pendulum-v1, 8,000 steps each" in whole.err
    assert "8,000 of 8,000 steps" in whole.err

    flags = replay_flags(tmp_path / "stopped")
    folder = (tmp_path / "stopped" / REPLAY_ID).parent
    kept = folder / f".{Path(REPLAY_ID).name}.training" / "checkpoints"
    for number, step in ((signal.SIGKILL, 2500), (signal.SIGINT, 5000)):
        with started(*flags) as process:
            wait_until(lambda step=step: (kept / str(step)).is_dir(), 60)
            error = stop(process, number)
        assert minari_io.local_ids(tmp_path / "stopped") == []
    assert process.returncode == 130
    assert "Traceback" not in error
    sentence = error.splitlines()[-1]
    stopped = re.match(r"stopped by SIGINT at step ([\d,]+) of each agent; .* goes on", sentence)
    assert stopped, sentence

    recipe, reports = collect.replay_from_flags(parsed(*flags)), []
    dataset = sac_collection.collect_and_save(
        recipe, str(tmp_path / "stopped"), lambda *report: reports.append(report), pytest.fail
    )
    assert reports[0] == (int(stopped[1].replace(",", "")), 8000, "")
    assert reports[-1][:2] == (8000, 8000)
    assert reports[-1][2].startswith("return -")
    assert not kept.parent.exists()
    assert "agent 0" in whole.out
    assert f"digest   {dataset.digest()}" in whole.out.splitlines()
    assert len(dataset.metadata["curves"][0]["step"]) == 2  # of 40 episodes

    collect.main(parsed(*flags))
    assert capsys.readouterr().out.startswith(f"exists already: {REPLAY_ID}")
    with pytest.raises(InputError, match="was collected with config"):
        collect.main(parsed(*flags, "--batch_size=16"))


@pytest.mark.parametrize(
    ("recipe", "sentence"),
    [
        ("medium-expert", "nothing was saved"),
        ("medium-replay", "the same command goes on from the last checkpoint"),
    ],
)
def test_what_is_kept(recipe: str, sentence: str) -> None:
    assert collect.kept(parsed(f"--dataset={recipe}")) == sentence
