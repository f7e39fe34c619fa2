"""From collection to evaluation in environments of Gymnasium, as a user types it."""

import dataclasses
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from appo_jax import policy, workers
from appo_jax.data import minari_io
from appo_jax.data.dataset import Dataset, Episode, from_episodes
from appo_jax.evaluation import episode_seed
from appo_jax.types import InputError
from experiments import evaluate
from experiments.runs import datasets, files, runner
from experiments.runs.events import silent
from experiments.runs.results import RunResult
from experiments.train import summary
from tests.helpers import environments as odd
from tests.helpers.processes import InTurn
from tests.helpers.runs import parse, print_told, tiny

PENDULUM = "gymnasium/Pendulum-v1/medium-replay-n1600-seed0-v0"


def flags(env: str, dataset: str, data_dir: Path, algorithm: str = "mr") -> list[str]:
    others = ("--task", "--dataset_size", "--tie")
    small = [flag for flag in tiny(algorithm) if not flag.startswith(others)]
    small += ["--num_updates=20", "--eval_interval=10", "--num_workers=1"]
    return [*small, f"--env={env}", f"--dataset={dataset}", f"--data_dir={data_dir}"]


def random_torques() -> Dataset:
    """Eight episodes of a real Pendulum, which no agent had to be trained for."""
    draw, episodes = np.random.default_rng(0), []
    with gymnasium.make("Pendulum-v1") as pendulum:
        for seed in range(8):
            observations, rewards = [pendulum.reset(seed=seed)[0]], []
            actions = draw.uniform(-2, 2, (200, 1))
            for action in actions:
                observation, reward, *_ = pendulum.step(action.astype(np.float32))
                observations.append(observation)
                rewards.append(float(reward))
            episodes.append(
                Episode(np.array(observations), actions, np.array(rewards), np.zeros(200))
            )
    return from_episodes(episodes, PENDULUM)


@pytest.fixture(
    scope="module", params=["random torques", pytest.param("collected", marks=pytest.mark.slow)]
)
def data_dir(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    folder = tmp_path_factory.mktemp("data")
    if request.param == "random torques":
        minari_io.save(random_torques(), folder)
        return folder
    command = [sys.executable, "-m", "experiments.collect", "--env=Pendulum-v1"]
    command += ["--dataset=medium-replay", "--size=1600", "--num_seeds=2", f"--data_dir={folder}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert "best episode" in done.stdout
    return folder


def test_without_terminations(
    data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "pool", InTurn)
    stored = minari_io.load(PENDULUM, data_dir)
    assert not stored.terminations.any()
    assert 1.9 < np.abs(stored.actions).max() <= 2  # torques, as the environment takes them

    arguments = [*flags("Pendulum-v1", PENDULUM, data_dir, "bc"), f"--workdir={tmp_path / 'run'}"]
    runs, execution = parse(*arguments)
    assert runs[0].tie_threshold == 0
    dataset = datasets.obtain(runs[0], execution, silent)
    np.testing.assert_allclose(dataset.actions, stored.actions / 2, atol=1e-6)

    (entry,) = runner.run(runs, execution)
    assert entry.success_rate is None
    assert [one.update for one in entry.evaluations] == [0, 10, 20]
    assert -2500 < entry.total_return < 0  # 200 steps of at most 16.3 each
    metrics = files.MetricsFile(tmp_path / "run" / "metrics.csv")
    assert list(metrics.values(0, "eval", "eval/return")) == [0, 10, 20]
    assert not metrics.values(0, "eval", "eval/success_rate")

    options = evaluate.Options(episodes=2, num_workers=1)
    ((_, episodes),) = evaluate.evaluate(policy.load_all(tmp_path / "run", [0]), options)
    last = metrics.values(0, "eval", "eval/return")[20]
    assert last == pytest.approx(episodes.returns.mean())

    trained, expected = policy.load(tmp_path / "run").policy, dataset.normaliser()
    np.testing.assert_array_equal(trained.normaliser.mean, expected.mean)
    np.testing.assert_array_equal(trained.normaliser.std, expected.std)
    assert (trained.actions.centre, trained.actions.half_range) == (0, 2)


def hopper_data(id: str, action: float = 1.0) -> Dataset:
    draw = np.random.default_rng(0)
    episodes = []
    for steps in (30, 12, 25):
        episodes.append(
            Episode(
                observations=draw.normal(size=(steps + 1, 11)),
                actions=draw.uniform(-action, action, (steps, 3)),
                rewards=draw.normal(size=steps),
                terminations=np.arange(steps) == steps - 1,
            )
        )
    return from_episodes(episodes, id)


@pytest.mark.slow  # by made-up episodes in test_evaluation.py, test_dataset.py and test_iql.py
def test_with_terminations(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    minari_io.save(hopper_data("mine/hopper-v0"), tmp_path)
    arguments = flags("Hopper-v5", "mine/hopper-v0", tmp_path, "oracle")
    arguments.append(f"--workdir={tmp_path / 'run'}")
    (entry,) = runner.run(*parse(*arguments), print_told)
    assert np.isfinite(entry.total_return)
    output = capsys.readouterr().out
    assert "67 transitions in 3 episodes, return " in output
    assert "eval/return at update 20: " in output


@pytest.fixture(scope="module")
def odd_run(data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., RunResult]:
    """Train for an environment of `tests.helpers.environments`, evaluated by its real episodes."""
    folder = tmp_path_factory.mktemp("odd")
    pendulum = minari_io.load(PENDULUM, data_dir)  # of which the program is compiled already
    minari_io.save(dataclasses.replace(pendulum, id="mine/odd-v0", metadata={}), folder)

    def run(cls: type, workdir: Path, *more: str) -> RunResult:
        arguments = [*flags(odd.name(cls), "mine/odd-v0", folder, "bc"), "--eval_episodes=6", *more]
        return runner.run(*parse(*arguments, f"--workdir={workdir}"), print_told)[0]

    return run


@pytest.mark.slow  # by made-up episodes in test_evaluation.py
def test_lost_episodes_leave_no_result(
    odd_run: Callable[..., RunResult], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    entry = odd_run(odd.NotANumber, tmp_path)
    assert (entry.state, entry.score, entry.num_evaluations_averaged) == ("finished", None, 0)
    assert summary([entry]) == "no result: the last evaluations lost episodes"
    lost = {one.update: one.lost_episodes for one in entry.evaluations}
    seeds = {u: [episode_seed(0, u, episode) for episode in range(6)] for u in lost}
    assert lost == {u: sum(seed % 2 for seed in found) for u, found in seeds.items()}
    written = (tmp_path / "summary.json").read_text()
    assert "NaN" not in written
    last = json.loads(written)["runs"][0]["evaluations"][-1]
    assert (last["total_return"], last["lost_episodes"]) == (None, lost[20])
    told = capsys.readouterr().out
    assert f"warning: evaluation at update 20: {lost[20]} of 6 episodes are lost: " in told


@pytest.mark.parametrize(("asked", "at_end"), [((), 0), (("--eval_stop_at_success",), 100)])
def test_episodes_end_at_their_first_success_where_that_is_asked_for(
    odd_run: Callable[..., RunResult],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    asked: tuple[str, ...],
    at_end: float,
) -> None:
    monkeypatch.setattr(workers, "pool", InTurn)
    entry = odd_run(odd.OtherSuccess, tmp_path, *asked)  # in the second of four steps
    found = [(one.success_rate, one.success_rate_at_end) for one in entry.evaluations]
    assert found == [(100, at_end)] * 3


@pytest.mark.slow  # by made-up episodes in test_evaluation.py
def test_an_environment_that_ignores_its_seed_is_told_of_once(
    odd_run: Callable[..., RunResult], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert odd_run(odd.Deaf, tmp_path, "--num_seeds=2", "--runs_per_group=1").score is not None
    told = [line for line in capsys.readouterr().out.splitlines() if "ignores its seed" in line]
    assert [line.split(" at update")[0] for line in told] == [
        f"warning: evaluation of run {run} (seed {run})" for run in range(2)
    ]


def test_a_simulator_that_fails_ends_the_run_with_a_sentence(
    odd_run: Callable[..., RunResult], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "pool", InTurn)
    with pytest.raises(InputError, match=r"Raises-v0' failed at step 2 .*division by zero"):
        odd_run(odd.Raises, tmp_path / "raises")
    with pytest.raises(InputError, match=r"can't be made by Gymnasium \(OSError: no licence\)"):
        odd_run(odd.Refuses, tmp_path / "refuses")
    assert not (tmp_path / "refuses" / "config.json").exists()


def test_actions_beyond_the_bounds_are_told_and_clipped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    minari_io.save(hopper_data("mine/wild-v0", action=1.5), tmp_path)
    runs, execution = parse(*flags("Hopper-v5", "mine/wild-v0", tmp_path))
    dataset = datasets.obtain(runs[0], execution, print_told)
    assert dataset.actions.max() == 1
    told = capsys.readouterr().out
    assert "warning: data set mine/wild-v0: actions of " in told
    assert "lie outside their bounds and are clipped; the first is 1." in told


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"--task": "sweep"}, "--env=Pendulum-v1: found with --task=sweep, expected one of the"),
        (
            {"--env": "sweep-v3"},
            "--env=sweep-v3: .* is another kind's, expected --task=sweep-v3",
        ),
        ({"--dataset": "auto"}, r"--dataset=auto: for Pendulum-v1 expected the id .*Pendul"),
        ({"--dataset": "no/such-v0"}, r"--dataset=no/such-v0: for Pendulum-v1 expected the id"),
        ({"--dataset": f"./{PENDULUM}"}, rf"--dataset=./{PENDULUM}: for Pendulum-v1 expected the"),
    ],
)
def test_bad_flags(change: dict[str, str], message: str, data_dir: Path) -> None:
    named: dict[str, Any] = dict(
        flag.split("=", 1) for flag in flags("Pendulum-v1", PENDULUM, data_dir)
    )
    with pytest.raises(InputError, match=f"^{message}"):
        parse(*(f"{name}={value}" for name, value in (named | change).items()))


def told_of(
    capsys: pytest.CaptureFixture[str], env: str, id: str, folder: Path, *more: str
) -> list[str]:
    """The warnings about an environment's data set, without their beginning."""
    runs, execution = parse(*flags(env, id, folder), *more)
    datasets.obtain(runs[0], execution, print_told)
    begin = f"warning: data set {id}: "
    return [x.removeprefix(begin) for x in capsys.readouterr().out.splitlines() if begin in x]


def test_actions_are_told_in_the_environments_units(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    draw = np.random.default_rng(0)
    for name, greatest, expected in (
        ("wild", 3.0, " and are clipped; the first is 2.* expected -2 to 2, in column 0 of "),
        ("tame", 0.5, "the widest is column 0, from 0.* to 0.* of -2 to 2; "),
    ):
        actions = draw.uniform(0, greatest, (30, 1))
        episode = Episode(draw.normal(size=(31, 3)), actions, np.arange(30), np.zeros(30))
        minari_io.save(from_episodes([episode] * 2, f"mine/{name}-v0"), tmp_path)
        (told,) = told_of(capsys, "Pendulum-v1", f"mine/{name}-v0", tmp_path)
        assert re.search(expected, told)


def test_data_of_another_environment(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = gymnasium.spec("HalfCheetah-v5").to_json()
    draw = np.random.default_rng(0)
    actions = draw.uniform(-1, 1, (30, 6))
    episode = Episode(draw.normal(size=(31, 17)), actions, np.arange(30), np.zeros(30))
    cheetah = from_episodes([episode] * 2, "mine/cheetah-v0", {"minari": {"env_spec": spec}})
    minari_io.save(cheetah, tmp_path)
    given = ("Walker2d-v5", cheetah.id, tmp_path)  # 17 and 6 as well
    with pytest.raises(
        InputError,
        match="^--dataset=mine/cheetah-v0: data of HalfCheetah-v5, expected data of Walker2d-v5; "
        "--allow_other_environment trains on them nevertheless",
    ):
        told_of(capsys, *given)
    (told,) = told_of(capsys, *given, "--allow_other_environment")
    assert told.startswith("it is from HalfCheetah-v5 and used for Walker2d-v5: another environ")
    assert told_of(capsys, "HalfCheetah-v5", *given[1:]) == []
    (told,) = told_of(capsys, "HalfCheetah-v4", *given[1:])
    assert told.startswith("it is from HalfCheetah-v5 and used for HalfCheetah-v4: another version")


def test_the_error_of_each_segment_is_the_default(data_dir: Path) -> None:
    given = flags("Pendulum-v1", PENDULUM, data_dir, "appo")
    policy = parse(*given)[0][0].policy
    assert (policy.pairwise_error, policy.partial_segments) == (False, True)
    assert parse(*given, "--pairwise_error")[0][0].policy.pairwise_error


def test_what_an_end_is_worth_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = hopper_data("mine/hopper-v0")
    minari_io.save(whole, tmp_path)
    given = ("Hopper-v5", whole.id, tmp_path)
    asked = (
        "3 of 3 episodes end in a terminal state, and nothing says what that is worth: learned "
        "rewards from 0 to 1 a step make every end a fall, which a policy puts off; --ending=goal "
    )
    assert [told[: len(asked)] for told in told_of(capsys, *given)] == [asked]
    for said in ("--ending=goal", "--ending=fall", "--reward_scale=raw", "--reward=true"):
        assert told_of(capsys, *given, said) == []
    never = np.zeros(len(whole.terminations), bool)
    minari_io.save(dataclasses.replace(whole, id="mine/endless-v0", terminations=never), tmp_path)
    assert told_of(capsys, "Hopper-v5", "mine/endless-v0", tmp_path) == []
    with pytest.raises(InputError, match="^--ending=goal: says where the zero of learned rewards"):
        parse(*flags(*given), "--reward=true", "--ending=goal")


def test_default_folder(data_dir: Path) -> None:
    (run,), execution = parse(*flags("Pendulum-v1", PENDULUM, data_dir))
    assert execution.workdir == Path("runs") / "Pendulum-v1" / "mr" / run.digest()
    other = dataclasses.replace(run, env_name="Hopper-v5")
    assert other.digest() != run.digest()
