"""`python -m experiments.collect` as a user types it, and as a user stops it."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from absl.flags import FlagValues
from train_helpers import members, wait_until

from appo_jax.collect import sac
from appo_jax.collect.medium_replay import Recipe
from appo_jax.data import minari_io
from appo_jax.types import InputError
from experiments import collect, medium_replay

ID = "metaworld/drawer-open-v3/medium-expert-n1000-seed2-v0"


def command(*flags: str) -> list[str]:
    return [sys.executable, "-m", "experiments.collect", *flags]


def run(*flags: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*flags), capture_output=True, text=True, timeout=120)


def test_collects_saves_and_tells(tmp_path: Path) -> None:
    flags = ["--task=drawer-open-v2", "--size=1000", "--seed=2", f"--data_dir={tmp_path}"]
    first = run(*flags, "--num_workers=2")
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

    again = run(*flags)
    assert again.returncode == 0
    assert again.stdout.startswith(f"exists already: {ID}")
    assert collect.collect_and_save(
        "drawer-open", "medium-expert", 1000, 2, str(tmp_path), 1
    ).digest() == (dataset.digest())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"task": None}, "--task is missing"),
        ({"task": "swep"}, "--task: task 'swep'"),
        ({"recipe": "medium-replay"}, "--dataset: recipe 'medium-replay' can't be collected"),
        ({"size": 501}, "--size: size is 501, expected a positive multiple of 500"),
        ({"size": 0}, "--size: size is 0"),
        ({"task": "reach", "size": None}, "--size is missing"),
        ({"seed": -1}, "--seed: -1, expected 0 or more"),
        ({"num_workers": 0}, "--num_workers: 0, expected at least 1"),
    ],
)
def test_bad_flags(change: dict[str, object], message: str) -> None:
    values = {"task": "sweep", "recipe": "medium-expert", "size": 500, "seed": 0, "num_workers": 1}
    with pytest.raises(InputError, match=message):
        collect.check_flags(**(values | change))  # type: ignore[arg-type]


def test_size_of_the_paper_is_the_default() -> None:
    assert collect.check_flags("sweep-v2", "medium-expert", None, 0, 1) == ("sweep-v3", 2_100_000)


def test_bad_command_lines_end_with_one_sentence(tmp_path: Path) -> None:
    cases = {
        "--size=many": "flag --size=many",
        "--task=swep": "flag --task: task 'swep'",
        "leftover": "found 'leftover' after the flags, expected flags only",
        "--szie=500": "Did you mean: size",
        "--data_dir=/dev/null": "expected a folder that can be written to",
    }
    common = ["--task=sweep", "--size=500", f"--data_dir={tmp_path}"]
    started = [
        subprocess.Popen(command(*common, bad), stderr=subprocess.PIPE, text=True) for bad in cases
    ]
    for process, (bad, message) in zip(started, cases.items(), strict=True):
        _, error = process.communicate(timeout=120)
        assert process.returncode == 1, bad
        assert message in error
        assert len(error.splitlines()) <= 2, error  # a note on the task's name may come before it
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.parametrize("when", ["starting", "collecting"])
def test_stopped(tmp_path: Path, number: signal.Signals, when: str) -> None:
    data_dir = tmp_path / "data"
    flags = ["--task=drawer-open", "--size=10000", f"--data_dir={data_dir}", "--num_workers=2"]
    process = subprocess.Popen(
        command(*flags), stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    with contextlib.ExitStack() as cleanup:
        cleanup.callback(_kill_group, process.pid)
        assert process.stderr is not None
        wait_until(lambda: len(members(process.pid)) >= 3, 60)  # workers, and their tracker
        if when == "starting":
            time.sleep(0.3)  # the first worker imports
        else:
            line = process.stderr.readline()
            while "of 10,000 steps" not in line:
                assert line, "ended before it collected"
                line = process.stderr.readline()
        if number == signal.SIGINT:
            os.killpg(process.pid, number)  # a terminal's Ctrl-C reaches the workers, too
        else:
            process.kill()
        process.wait(timeout=5)
        wait_until(lambda: not members(process.pid), 5)
        error = process.stderr.read()
    if number == signal.SIGINT:
        assert "Traceback" not in error
        assert process.returncode == 130
        assert error.splitlines()[-1] == "interrupted: nothing was saved"
    assert minari_io.local_ids(data_dir) == []


def _kill_group(group: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


REPLAY_ID = "gymnasium/Pendulum-v1/medium-replay-n8000-seed1-v0"


def replay_flags(data_dir: Path) -> list[str]:
    return [
        *("--env=Pendulum-v1", "--dataset=medium-replay", "--size=8000", "--seed=1"),
        *("--num_seeds=1", "--batch_size=8", "--updates_per_step=0.25", f"--data_dir={data_dir}"),
    ]


def test_medium_replay_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    whole = subprocess.Popen(
        command(*replay_flags(tmp_path / "whole")), stdout=subprocess.PIPE, text=True
    )
    flags = replay_flags(tmp_path / "stopped")
    folder = (tmp_path / "stopped" / REPLAY_ID).parent
    kept = folder / f".{Path(REPLAY_ID).name}.training" / "checkpoints"
    for number, step in ((signal.SIGKILL, 2500), (signal.SIGINT, 5000)):
        process = subprocess.Popen(
            command(*flags), stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        with contextlib.ExitStack() as cleanup:
            cleanup.callback(_kill_group, process.pid)
            wait_until(lambda step=step: (kept / str(step)).is_dir(), 60)
            if number == signal.SIGINT:
                os.killpg(process.pid, number)
            else:
                process.kill()
            process.wait(timeout=20)
            wait_until(lambda process=process: not members(process.pid), 5)
            assert process.stderr is not None
            error = process.stderr.read()
        assert minari_io.local_ids(tmp_path / "stopped") == []
    assert process.returncode == 130
    assert "Traceback" not in error
    assert "stopped by SIGINT at step" in error
    assert "the same command goes on" in error.splitlines()[-1]

    resumed = run(*flags)
    assert resumed.returncode == 0, resumed.stderr
    assert "agent 0" in resumed.stdout
    assert not kept.parent.exists()
    output, _ = whole.communicate(timeout=60)
    digest = [line for line in output.splitlines() if line.startswith("digest")]
    assert digest == [line for line in resumed.stdout.splitlines() if line.startswith("digest")]
    dataset = minari_io.load(REPLAY_ID, tmp_path / "stopped")
    assert len(dataset.metadata["curves"][0]["step"]) == 2  # of 40 episodes

    assert run(*flags).stdout.startswith(f"exists already: {REPLAY_ID}")
    other = run(*flags, "--batch_size=16")
    assert other.returncode == 1
    assert "was collected with config" in other.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--task="], "flag --task: task ''"),
        (["--task=sweep", "--env=Hopper-v5"], "flags --task=sweep and --env=Hopper-v5: expected"),
        ([], "flags --task=None and --env=None: expected one of the two"),
        (["--env=sweep-v3"], "flag --env: environment 'sweep-v3' is a Meta-World task"),
        (["--env=Hopper-v5"], "flag --size is missing"),
        (["--task=reach"], "flag --size is missing, expected a number: reach-v3 is not in the pap"),
        (["--task=sweep", "--size=1000"], "flag --size: size is 1000, expected .* of 1500"),
        (["--task=sweep", "--num_seeds=0"], "flag --num_seeds: 0, expected a number above 0"),
        (["--task=sweep", "--batch_size=-1"], "flag --batch_size: -1, expected a number above 0"),
        (["--task=sweep", "--updates_per_step=nan"], "flag --updates_per_step: nan, expected"),
        (["--task=sweep", "--seed=-1"], "flag --seed: -1, expected a number from 0"),
    ],
)
def test_bad_flags_of_medium_replay(arguments: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        medium_replay.recipe_from_flags(parsed("--dataset=medium-replay", *arguments))


def test_the_papers_set_is_the_default() -> None:
    recipe = medium_replay.recipe_from_flags(parsed("--dataset=medium-replay", "--task=sweep-v2"))
    assert recipe == Recipe("sweep-v3", 2_100_000, 0, 3, 1.0, 5000, sac.Config())
    assert recipe.num_steps == 700_000
    assert medium_replay.dataset_id(recipe) == (
        "metaworld/sweep-v3/medium-replay-n2100000-seed0-v0"
    )


@pytest.mark.parametrize("flag", ["--env=Hopper-v5", "--num_seeds=2", "--updates_per_step=1"])
def test_flags_that_medium_expert_has_no_use_for(flag: str) -> None:
    name = flag.split("=")[0]
    with pytest.raises(InputError, match=f"flag {name}: given with --dataset=medium-expert"):
        medium_replay.refuse_flags(parsed("--task=sweep", flag))


def parsed(*arguments: str) -> FlagValues:
    values = FlagValues()
    collect.define_flags(values)
    values(["collect", *arguments])
    return values
