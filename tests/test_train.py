"""`python -m experiments.train` as a user types it, stops it, and types it wrong."""

import dataclasses
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from train_helpers import (
    SIZE,
    TASK,
    TINY,
    Command,
    contents,
    metadata,
    parse,
    result,
)

from experiments import outputs

SUMMARY_KEYS = (
    *("algorithm", "task", "dataset", "seed", "lam", "num_feedback", "num_updates"),
    *("success_rate", "success_rates", "reward_accuracy", "updates_per_second", "wall_seconds"),
)


pytestmark = pytest.mark.usefixtures("compiled")


@dataclasses.dataclass
class Finished:
    folder: Path  # in which the command ran
    workdir: Path
    lines: list[str]
    stderr: str


@pytest.fixture(scope="module")
def command(compiled: Path, data_dir: Path) -> Callable[..., Command]:
    return lambda folder, *arguments: Command(
        folder, compiled, *TINY, f"--data_dir={data_dir}", *arguments
    )


@pytest.fixture(scope="module")
def finished(
    tmp_path_factory: pytest.TempPathFactory, command: Callable[..., Command], data_dir: Path
) -> Finished:
    folder = tmp_path_factory.mktemp("finished")
    status, lines, stderr = command(folder).finish()
    assert status == 0, stderr
    digest = parse(*TINY, f"--data_dir={data_dir}")[0][0].digest()
    return Finished(folder, folder / "runs" / TASK / "appo" / digest, lines, stderr)


def test_tells_what_it_does(finished: Finished, data_dir: Path) -> None:
    text = "\n".join(finished.lines)
    for expected in (
        rf"task           {TASK}-v3, lambda 0.03, seed 0",
        rf"data set       lire/{TASK}-v3/n{SIZE}",
        rf"(--dataset=auto found a local medium-replay set in {data_dir})",
        "labels         40 pairs of segments of 5 steps; scripted teacher, ties within 1",
        "reward         learned; 3 networks of 1 x 16, 2 epochs, scale minmax",
        "policy         appo; networks of 1 x 16, 60 updates",
        "evaluation     2 episodes every 20 updates, 2 workers",
        "device         ",
        f"results        {finished.workdir.relative_to(finished.folder)}",
        f"data: {SIZE:,} transitions in 4 episodes",
        "5 of 60 updates, ",
        "success at update 20: ",
        "success at update 60: ",
    ):
        assert expected in text
    assert len(finished.lines) < 40
    assert finished.stderr == ""  # no bar for a file, no library that talks
    assert finished.lines[-1].startswith("success rate 0.0 % (the mean of the last 3 evaluations)")


def test_writes_every_output(finished: Finished) -> None:
    names = {path.name for path in finished.workdir.iterdir()}
    assert names == {
        *("checkpoints", "config.json", "learning_curve.png", "metrics.csv"),
        *("preferences.jsonl", "summary.json", ".lock"),
    }
    assert (finished.workdir / "learning_curve.png").read_bytes().startswith(b"\x89PNG")
    header, first = (finished.workdir / "metrics.csv").read_text().splitlines()[:2]
    assert header == "run,update,split,metric,value,time"
    assert first.startswith("0,0,reward,reward/")
    assert [path.name for path in finished.folder.iterdir()] == ["runs"]


def test_summary(finished: Finished) -> None:
    (entry,) = outputs.read_json(finished.workdir / "summary.json")["runs"]
    assert set(SUMMARY_KEYS) <= set(entry)
    assert entry["dataset"] == f"lire/{TASK}-v3/n{SIZE}"
    assert (entry["seed"], entry["lam"], entry["num_feedback"]) == (0, 0.03, 40)
    assert [rate["update"] for rate in entry["success_rates"]] == [20, 40, 60]
    assert 0 < entry["reward_accuracy"] < 1
    assert 500 < entry["reward_accuracy_pairs"] < 1000
    assert entry["updates_per_second"] > 1
    assert 1 < entry["wall_seconds"] < 200


def test_config_is_fully_resolved(finished: Finished, data_dir: Path) -> None:
    config = outputs.read_json(finished.workdir / "config.json")
    (experiment,), _ = parse(*TINY, f"--data_dir={data_dir}")
    (run,) = config["runs"]
    assert run == json.loads(json.dumps(experiment.resolved()))
    assert run["dataset"]["requested"] == "auto"
    assert "found a local medium-replay set" in run["dataset"]["reason"]
    assert config["dataset_contents"][run["dataset"]["id"]]["num_transitions"] == SIZE
    assert {"jax", "numpy", "orbax-checkpoint"} <= set(config["versions"])


def test_checkpoint_holds_all_that_a_policy_needs(finished: Finished) -> None:
    kept = metadata(finished.workdir)
    assert kept["runs"][0]["policy"]["hidden_dim"] == 16
    assert kept["dataset_digests"]
    assert any("normaliser" in leaf for leaf in kept["leaves"])
    assert any("key" in leaf for leaf in kept["leaves"])


def test_finished_run_prints_its_result(
    finished: Finished, command: Callable[..., Command]
) -> None:
    before = contents(finished.workdir)
    status, lines, stderr = command(finished.folder).finish(30)
    assert (status, stderr) == (0, "")
    assert lines[-2] == f"this run is finished; its results lie in {lines[9].split()[-1]}"
    assert lines[-1] == finished.lines[-1]
    status, _, stderr = command(finished.folder, "--num_updates=40").finish(30)
    assert status == 1
    assert "error: --num_updates=40: " in stderr
    assert contents(finished.workdir) == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_stopped_and_started_again(
    finished: Finished, command: Callable[..., Command], tmp_path: Path, number: signal.Signals
) -> None:
    interrupted = number == signal.SIGINT
    # Neither the workers nor the chunks change a number.
    differently = ("--workdir=run", "--num_workers=1")
    first = command(tmp_path, *differently)
    first.wait_for("5 of 60 updates" if interrupted else "success at update 20")
    if not interrupted:
        first.signal(signal.SIGSTOP, whole_session=False)
        status, _, stderr = command(tmp_path, *differently).finish(30)
        assert status == 1
        assert stderr == (
            "error: --workdir=run: another process is at work there, expected to have it alone\n"
        )
    first.signal(number, whole_session=interrupted)
    status, lines, stderr = first.finish()
    assert status == (130 if interrupted else -number)
    if interrupted:
        assert stderr == ""
        assert lines[-1].startswith("stopped by SIGINT at update ")
        assert lines[-1].endswith("; the same command goes on from there")
    status, lines, stderr = command(tmp_path, *differently).finish()
    assert (status, stderr) == (0, "")
    assert any(line.startswith("going on from update ") for line in lines)
    assert lines[-1] == finished.lines[-1]
    assert result(tmp_path / "run") == result(finished.workdir)


def test_interrupted_while_it_fits_the_reward(
    command: Callable[..., Command], tmp_path: Path
) -> None:
    process = command(tmp_path, "--reward_num_epochs=9999", "--workdir=run")
    process.wait_for("reward model: fitting")
    process.signal(signal.SIGINT)
    status, _, stderr = process.finish(60)
    assert status == 130
    assert stderr == "interrupted; the same command goes on from what is on disk\n"


def test_bad_command_lines_end_at_once(tmp_path: Path, data_dir: Path) -> None:
    (tmp_path / "file").touch()
    cases = {
        "--lam=abc": "flag --lam=abc: could not convert string to float",
        "--lamm=0.1": "Unknown command line flag 'lamm'. Did you mean: lam ?",
        "leftover": "found 'leftover' after the flags, expected flags only",
        "--workdir=file/run": "error: --workdir=file/run: can't be written to (Not a directory)",
    }
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "experiments.train", *TINY, f"--data_dir={data_dir}", bad],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
        )
        for bad in cases
    ]
    for process, (bad, message) in zip(started, cases.items(), strict=True):
        _, stderr = process.communicate(timeout=60)
        assert process.returncode == 1, bad
        assert stderr.startswith(message)
        assert len(stderr.splitlines()) == 1, stderr
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
