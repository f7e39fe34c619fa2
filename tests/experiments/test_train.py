"""`python -m experiments.train` as a user types it, stops it, and types it wrong."""

import dataclasses
import json
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from appo_jax import checkpoint, workers
from appo_jax.types import InputError
from experiments import evaluate, train
from experiments.runs import files
from tests.helpers.commands import call
from tests.helpers.processes import InTurn
from tests.helpers.runs import (
    SIZE,
    TASK,
    TINY,
    Command,
    contents,
    metadata,
    parse,
    result,
)


@dataclasses.dataclass
class Finished:
    folder: Path  # in which the command ran
    workdir: Path
    lines: list[str]
    stderr: str


@pytest.fixture(scope="module")
def command(data_dir: Path) -> Callable[..., Command]:
    return lambda folder, *arguments: Command(folder, *TINY, f"--data_dir={data_dir}", *arguments)


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
        f"task           {TASK}-v3, seed 0",
        "algorithm      appo, APPO: adversarial policy optimisation on a learned reward; lam 0.03",
        "policy         hidden_layers 1 (3), hidden_dim 16 (256), batch_size 8 (256), num_pairs",
        f"data set       lire/{TASK}-v3/n{SIZE}",
        f"(--dataset=auto found a local medium-replay set in {data_dir})",
        "labels         40 pairs of segments of 5 steps; scripted teacher, ties within 1",
        "reward         learned; model of hidden_layers 1 (2), hidden_dim 16 (128), num_epochs 2 (",
        "evaluation     2 episodes every 20 of 60 updates, 1 worker\n",
        "device         ",
        f"results        {finished.workdir.relative_to(finished.folder)}",
        f"data: {SIZE:,} transitions in 4 episodes",
        "training: 5 of 60 updates, ",
        "reward model (40 labels): 2 of 2 updates",
        "success at update 20: ",
        "success at update 60: ",
    ):
        assert expected in text
    assert len(finished.lines) < 40
    assert finished.stderr == ""  # no bar for a file, no library that talks
    assert finished.lines[-1].startswith(
        "success rate 0.0 % (the mean of the last 3 evaluations; suc"
    )


def test_writes_every_output(finished: Finished) -> None:
    names = {path.name for path in finished.workdir.iterdir()}
    assert names == {
        *("checkpoints", "config.json", "learning_curve.png", "metrics.csv"),
        *("preferences.jsonl", "summary.json", ".lock"),
    }
    assert (finished.workdir / "learning_curve.png").read_bytes().startswith(b"\x89PNG")
    header, first = (finished.workdir / "metrics.csv").read_text().splitlines()[:2]
    assert header == "run,update,split,metric,value,time"
    assert first.startswith("0,2,reward,reward/")
    assert [path.name for path in finished.folder.iterdir()] == ["runs"]


def test_summary(finished: Finished) -> None:
    (entry,) = files.read_json(finished.workdir / "summary.json")["runs"]
    assert (entry["algorithm"], entry["env_name"], entry["state"]) == (
        *("appo", f"{TASK}-v3"),
        "finished",
    )
    assert entry["dataset"] == f"lire/{TASK}-v3/n{SIZE}"
    settings = entry["settings"]
    assert (settings["seed"], settings["lam"], settings["num_feedback"]) == (0, 0.03, 40)
    assert [one["update"] for one in entry["evaluations"]] == [0, 20, 40, 60]
    assert entry["score"] == entry["success_rate"] == 0
    assert 0 < entry["reward_accuracy"] < 1
    assert 500 < entry["reward_accuracy_pairs"] < 1000
    assert entry["updates_per_second"] > 1
    assert 1 < entry["wall_seconds"] < 200


def test_config_is_fully_resolved(finished: Finished, data_dir: Path) -> None:
    config = files.read_json(finished.workdir / "config.json")
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
    finished: Finished,
    data_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = contents(finished.workdir)
    monkeypatch.chdir(finished.folder)
    call(train, *TINY, f"--data_dir={data_dir}")
    lines = capsys.readouterr().out.splitlines()
    where = next(line.split()[-1] for line in lines if line.startswith("results "))
    assert lines[-2] == f"this run is finished; its results lie in {where}"
    assert lines[-1] == finished.lines[-1]
    assert contents(finished.workdir) == before


def test_a_checkpoint_gives_the_numbers_of_training(
    finished: Finished,
    data_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder, metrics = finished.workdir, files.MetricsFile(finished.workdir / "metrics.csv")
    names = ("eval/success_rate", "eval/success_rate_at_end", "eval/return")
    assert checkpoint.updates(folder / "checkpoints" / "policy") == [20, 40, 60]
    monkeypatch.chdir(folder)
    monkeypatch.setattr(workers, "pool", InTurn)
    data_dir.rename(tmp_path / "away")  # a policy needs no data
    try:
        call(evaluate, "--checkpoint=checkpoints/policy/20", "--episodes=2")
    finally:
        (tmp_path / "away").rename(data_dir)
    first, second = capsys.readouterr().out.splitlines()
    numbers = "lam 0.03, discount 0.99, tau 0.001"
    assert first == f"appo on {TASK}-v3, {numbers}, seed 0, update 20, 2 episodes"
    values = [metrics.values(0, "eval", name) for name in names]
    rate, at_end, total = (value[20] for value in values)
    assert second.startswith(f"success rate {rate:.1f} % (at any step of an episode; 95 % W")
    assert f"at the last step {at_end:.1f} %), return {total:.2f} (95 % boot" in second
    assert values[-1][60] != total  # another policy


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_stopped_and_started_again(
    finished: Finished, command: Callable[..., Command], tmp_path: Path, number: signal.Signals
) -> None:
    interrupted = number == signal.SIGINT
    # Neither the workers nor the chunks change a number.
    differently = ("--workdir=run", "--num_workers=2")
    first = command(tmp_path, *differently)
    first.wait_for("training: 5 of 60 updates" if interrupted else "success at update 20")
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
        assert re.fullmatch(
            r"stopped by SIGINT at update \d+; the same command goes on from there\n", stderr
        )
    status, lines, stderr = command(tmp_path, *differently).finish()
    assert (status, stderr) == (0, "")
    assert any(line.startswith("going on from update ") for line in lines)
    assert lines[-1] == finished.lines[-1]
    assert result(tmp_path / "run") == result(finished.workdir)


FIT = ("--reward_num_epochs=400", "--num_updates=20", "--eval_interval=20")


@pytest.fixture(scope="module")
def fitted(command: Callable[..., Command], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose reward model takes its time."""
    folder = tmp_path_factory.mktemp("fitted")
    assert command(folder, *FIT, "--workdir=run").finish()[0] == 0
    return folder / "run"


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_stopped_while_it_fits_the_reward(
    command: Callable[..., Command], fitted: Path, tmp_path: Path, number: signal.Signals
) -> None:
    """The fit goes on where it was, to the same bits."""
    first = command(tmp_path, *FIT, "--workdir=run", "--chunk_updates=1")
    first.wait_for("reward model (40 labels): 200 of 400 updates")
    first.signal(number, whole_session=number == signal.SIGINT)
    status, _, stderr = first.finish(60)
    if number == signal.SIGINT:
        assert status == 130
        assert re.match(r"stopped by SIGINT at update \d+; the same command goes on", stderr)
    saved = checkpoint.updates(tmp_path / "run" / "checkpoints" / "reward-40")
    assert 40 <= saved[-1] < 400
    status, lines, _ = command(tmp_path, *FIT, "--workdir=run").finish()
    assert status == 0
    assert not any(" 1 of 400 updates" in line for line in lines)
    for kind, update in (("reward-40", 400), ("policy", 20)):
        digests = {
            checkpoint.read_metadata(run / "checkpoints" / kind, update)["digest"]
            for run in (tmp_path / "run", fitted)
        }
        assert len(digests) == 1


OWN_OF_APPO = ("num_pairs", "reward_hidden_layers", "reward_hidden_dim")
TINY_TRANSFORMER = (
    *(flag for flag in TINY if flag.removeprefix("--").split("=")[0] not in OWN_OF_APPO),
    "--reward_num_heads=2",
    "--reward_head_dim=4",
    "--num_updates=10",
    "--eval_interval=10",
    "--eval_episodes=1",
)


@pytest.mark.slow  # the same as of an ensemble, with another program
@pytest.mark.timeout(900)
def test_a_killed_fit_of_a_transformer_goes_on_to_the_same_bits(
    data_dir: Path, tmp_path: Path
) -> None:
    flags = (*TINY_TRANSFORMER, "--algorithm=pt", f"--data_dir={data_dir}")
    flags += ("--reward_num_epochs=300",)
    whole = Command(tmp_path, *flags, "--workdir=whole")
    assert whole.finish(300)[0] == 0
    first = Command(tmp_path, *flags, "--workdir=run", "--chunk_updates=4")
    first.wait_for("reward model (40 labels): 152 of 300 updates")
    first.signal(signal.SIGKILL, whole_session=False)
    assert first.finish(60)[0] == -signal.SIGKILL
    assert checkpoint.updates(tmp_path / "run" / "checkpoints" / "reward-40")[-1] < 300
    status, lines, stderr = Command(tmp_path, *flags, "--workdir=run").finish(300)
    assert (status, stderr) == (0, "")
    assert result(tmp_path / "run")[0] == result(tmp_path / "whole")[0]
    folders = [tmp_path / run / "checkpoints" / "reward-40" for run in ("run", "whole")]
    assert len({checkpoint.read_metadata(folder, 300)["digest"] for folder in folders}) == 1
    assert any(re.match("reward model: right on .* % of .* fresh pairs", line) for line in lines)


@pytest.mark.slow
def test_dppo_tells_what_it_does(data_dir: Path, tmp_path: Path) -> None:
    flags = (*TINY_TRANSFORMER, "--algorithm=dppo", f"--data_dir={data_dir}", "--lam=0.3")
    status, lines, stderr = Command(tmp_path, *flags, "--workdir=run").finish()
    assert (status, stderr) == (0, "")
    text = "\n".join(lines)
    for expected in (
        "algorithm      dppo, DPPO: imitation of the windows that a predictor of preferences",
        "highest; lam 0.3, temperature 0.1",
        "reward         learned; model of num_heads 2 (4), head_dim 4 (64), num_epochs 2 (10000)",
        "reward model (40 labels): 2 of 2 updates",
        "reward model: right on ",
        "training: 10 of 10 updates",
        "success at update 10: ",
    ):
        assert expected in text


def test_a_bad_command_line_ends_at_once(
    tmp_path: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"^--workdir=file/run: can't be written to \(Not a dir"):
        call(train, *TINY, f"--data_dir={data_dir}", "--workdir=file/run")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
