"""Many runs are one program: each equals itself alone, whatever it trains beside."""

import collections
import dataclasses
import functools
import itertools
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
from absl import flags

from appo_jax import appo, checkpoint, load_policy, policy, training
from appo_jax.types import Diverged, InputError
from experiments.runs import files, groups, results, runner, signals
from experiments.runs.experiment import Experiment
from experiments.runs.groups import TrainingProgram
from experiments.runs.loop import Loop
from tests.helpers.compilation import xla_flags
from tests.helpers.runs import TASK, TINY, parse, print_told, signal_at, tiny, write_buffers

OTHER = "drawer-open"
LAMS, COUNTS, SEEDS = (0.03, 0.1), (30, 40), (0, 3)
GRID = (
    f"--task={TASK},{OTHER}",
    "--dataset_size=1000",
    "--lam=0.03,0.1",
    "--num_feedback=30,40",
    "--seed=0,3",
    "--num_updates=40",
)
# The same of an algorithm whose program compiles in a fifth of the time, and needs no reward model.
CLONING = (*tiny("bc"), *(flag.replace("lam=0.03,0.1", "learning_rate=0.03,0.1") for flag in GRID))

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.usefixtures("fake_evaluations")


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Buffers of two tasks."""
    folder = tmp_path_factory.mktemp("data")
    write_buffers(folder)
    write_buffers(folder, seed=1, task=f"{OTHER}-v3")
    return folder


@pytest.fixture(scope="module")
def start(data_dir: Path) -> Callable[..., Any]:
    def start(workdir: Path, *arguments: str) -> Any:
        places = (f"--workdir={workdir}", f"--data_dir={data_dir}")
        base = () if arguments[: len(CLONING)] == CLONING else TINY
        runs, execution = parse(*base, *places, *arguments)
        return runner.run([_with_size(run) for run in runs], execution, print_told)

    return start


def _with_size(run: Experiment) -> Experiment:
    """The other task's data set is twice as large; the command line has one size for all."""
    if run.env_name != f"{OTHER}-v3":
        return run
    dataset = dataclasses.replace(run.dataset, id=f"lire/{OTHER}-v3/n2000", size=2000)
    return dataclasses.replace(run, dataset=dataset)


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory, start: Callable[..., Any]) -> Path:
    workdir = tmp_path_factory.mktemp("grid") / "run"
    start(workdir, *GRID)
    return workdir


@pytest.fixture(scope="module")
def cloned(tmp_path_factory: pytest.TempPathFactory, start: Callable[..., Any]) -> Path:
    workdir = tmp_path_factory.mktemp("cloned") / "run"
    start(workdir, *CLONING)
    return workdir


def metrics_of(workdir: Path, run: int) -> list[tuple[Any, ...]]:
    """A run's metrics without time."""
    return sorted(
        (row["update"], row["split"], row["metric"], row["value"])
        for row in files.MetricsFile(workdir / "metrics.csv").rows
        if row["run"] == run
        and row["split"] != "clock"
        # Means over chunks, and how long those are depends on how many are fitted together.
        and not row["metric"].startswith(("reward/loss", "reward/train_", "reward/learning_rate"))
    )


def found(workdir: Path, run: int) -> tuple[list[tuple[Any, ...]], list[np.ndarray]]:
    """A run's metrics, and its whole state and scales at the end."""
    trained = policy.load(workdir, run).policy
    saved = trained.state, vars(trained.normaliser), vars(trained.actions)
    return metrics_of(workdir, run), [np.asarray(leaf) for leaf in jax.tree.leaves(saved)]


def assert_same(first: Any, second: Any) -> None:
    assert first[0] == second[0]
    for left, right in zip(first[1], second[1], strict=True):
        np.testing.assert_array_equal(left, right)


def test_every_combination_is_a_run(grid: Path) -> None:
    entries = files.read_json(grid / "summary.json")["runs"]
    combinations = [
        (f"{task}-v3", count, lam, seed)
        for task, count, lam, seed in itertools.product((TASK, OTHER), COUNTS, LAMS, SEEDS)
    ]
    assert [
        (
            entry["env_name"],
            entry["settings"]["num_feedback"],
            entry["settings"]["lam"],
            entry["seed"],
        )
        for entry in entries
    ] == combinations
    rows = collections.Counter(
        (row["run"], row["split"]) for row in files.MetricsFile(grid / "metrics.csv").rows
    )
    assert len({rows[run, "train"] for run in range(16)}) == 1
    assert {rows[run, "eval"] for run in range(16)} == {12}
    assert len({tuple(metrics_of(grid, run)) for run in range(16)}) == 16
    assert len(list((grid / "preferences").iterdir())) == 8  # shared over lambda


@pytest.mark.parametrize("run", [pytest.param(6, marks=pytest.mark.slow), 11])
def test_a_run_of_a_grid_is_bit_equal_to_itself_alone(
    grid: Path, start: Callable[..., Any], tmp_path: Path, run: int
) -> None:
    task, count, lam, seed = list(itertools.product((TASK, OTHER), COUNTS, LAMS, SEEDS))[run]
    alone = (f"--task={task}", f"--lam={lam}", f"--num_feedback={count}", f"--seed={seed}")
    # A grid's chunks are shorter under `map`; metrics are means over chunks.
    start(tmp_path, *GRID, *alone, "--chunk_updates=1")
    assert_same(found(grid, run), found(tmp_path, 0))
    labels = f"{task}-v3-seed{seed}-n{count}.jsonl"
    assert (grid / "preferences" / labels).read_text() == (
        tmp_path / "preferences.jsonl"
    ).read_text()


@pytest.mark.slow  # with another algorithm, a grid that is stopped in its second group is in CI
def test_groups_of_runs_change_nothing(
    grid: Path, start: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[str] = []
    compile = TrainingProgram.compile

    def noting(program: Any, *arguments: Any) -> None:
        if not program.is_compiled:
            compiled.append(program._learner.__name__)
        compile(program, *arguments)

    monkeypatch.setattr(TrainingProgram, "compile", noting)
    # Groups of 6, 6 and 4 runs, the last filled up.
    entries = start(tmp_path, *GRID, "--runs_per_group=6", "--chunk_updates=6")
    assert len(entries) == 16
    folders = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert folders == ["policy-0", "policy-12", "policy-6", "reward-30", "reward-40"]
    for run in (0, 5, 6, 12, 15):
        assert_same(found(grid, run), found(tmp_path, run))
    assert compiled == [*["appo_jax.reward_model"] * len(COUNTS), "appo_jax.appo"]


def test_adding_a_seed_changes_no_other_run(
    cloned: Path, start: Callable[..., Any], tmp_path: Path
) -> None:
    start(
        tmp_path,
        *CLONING,
        f"--task={TASK}",
        "--learning_rate=0.1",
        "--num_feedback=40",
        "--seed=7,0,3",
    )
    metrics = files.MetricsFile(tmp_path / "metrics.csv")
    for run, in_grid in ((1, 6), (2, 7)):
        for left, right in zip(found(tmp_path, run)[1], found(cloned, in_grid)[1], strict=True):
            np.testing.assert_array_equal(left, right)
        expected = files.MetricsFile(cloned / "metrics.csv").values(in_grid, "eval", "eval/return")
        assert metrics.values(run, "eval", "eval/return") == expected


def test_a_grid_stopped_in_its_second_group_goes_on(
    cloned: Path, start: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = (*CLONING, "--runs_per_group=8", "--chunk_updates=8")
    with monkeypatch.context() as patch:
        signal_at(patch, 20, 2)
        with pytest.raises(signals.Stopped, match="at update 20"):
            start(tmp_path, *arguments)
    with monkeypatch.context() as patch:
        signal_at(patch, 30, 2)  # of the first group, then of the second
        for _ in range(2):
            with pytest.raises(signals.Stopped, match="at update 30"):
                start(tmp_path, *arguments)
    with pytest.raises(InputError, match=r"--runs_per_group=5: .* begun with 8, expected the same"):
        start(tmp_path, *CLONING, "--runs_per_group=5", "--chunk_updates=8")
    start(tmp_path, *arguments)
    for run in (0, 7, 8, 15):
        assert_same(found(cloned, run), found(tmp_path, run))


def test_a_reward_model_that_goes_wrong_stops_its_runs_alone(
    start: Callable[..., Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    train_chunk = Loop._train_chunk

    def poisoned(loop: Any, stages: str) -> None:
        program = loop._work.program
        if re.match(stages, loop._work.stage):
            nan = program._store.observations * np.nan
            program._store = program._store.replace(observations=nan)
        train_chunk(loop)

    flags = ("--num_feedback=20,40", "--num_updates=20")
    with monkeypatch.context() as patch:
        poison = functools.partialmethod(poisoned, r"reward model \(20 labels")
        patch.setattr(Loop, "_train_chunk", poison)
        entries = start(tmp_path / "two", *flags)
        told = capsys.readouterr().out
        assert "it is stopped, the others go on" in told
        assert "(20 labels): fitted in" not in told
        assert [entry.state for entry in entries] == ["diverged", "finished"]
        assert [entry.reward_accuracy is None for entry in entries] == [True, False]
        assert [entry.updates_done for entry in entries] == [0, 20]
        patch.setattr(Loop, "_train_chunk", functools.partialmethod(poisoned, "reward model "))
        with pytest.raises(Diverged, match="reward model of .*: reward.loss is nan"):
            start(tmp_path / "all", *flags)
    start(tmp_path / "one", "--num_feedback=40", "--num_updates=20")
    alone = found(tmp_path / "one", 0)[1]
    for left, right in zip(found(tmp_path / "two", 1)[1], alone, strict=True):
        np.testing.assert_array_equal(left, right)


def test_a_run_that_goes_wrong_stops_alone(
    start: Callable[..., Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    entries = start(tmp_path / "two", "--lam=0.03,1e30", "--chunk_updates=10")
    told = capsys.readouterr().out
    assert "run 1 (lam 1e+30): critics.optimiser." in told
    assert "it is stopped, the others go on" in told
    start(tmp_path / "one", "--lam=0.03", "--chunk_updates=5")
    assert_same(found(tmp_path / "two", 0), found(tmp_path / "one", 0))
    assert [entry.stopped_at for entry in entries] == [None, 0]
    assert entries[1].success_rate is None
    assert entries[0].success_rate is not None
    states = _states(tmp_path / "two")
    assert states.step.tolist() == [60, 0]
    assert "(1 diverged)" in results.table(entries)
    # Also where the first group has no run left.
    flags = ("--lam=1e30,0.03", "--runs_per_group=1", "--chunk_updates=5")
    entries = start(tmp_path / "groups", *flags)
    assert [entry.stopped_at for entry in entries] == [0, None]
    for left, right in zip(
        found(tmp_path / "groups", 1)[1], found(tmp_path / "one", 0)[1], strict=True
    ):
        np.testing.assert_array_equal(left, right)


def _states(workdir: Path) -> Any:
    folder = workdir / "checkpoints" / "policy"
    update = checkpoint.updates(folder)[-1]
    metadata = checkpoint.read_metadata(folder, update)
    shapes = policy.template("appo", appo.Config(**metadata["runs"][0]["policy"]), (39, 4), 2)
    return checkpoint.restore(folder, update, shapes)[0]["states"]


def test_a_grid_that_does_not_fit_is_split(
    start: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = (*CLONING, f"--task={TASK}", "--num_feedback=40", "--chunk_updates=2")
    needed: dict[int, int] = {}
    memory = groups._memory

    def noting(program: Any) -> int:
        needed[len(needed)] = memory(program)
        return needed[len(needed) - 1]

    monkeypatch.setattr(groups, "_memory", noting)
    start(tmp_path / "whole", *arguments)
    assert not list((tmp_path / "whole" / "checkpoints").glob("policy-*"))
    monkeypatch.setattr(groups, "_memory_limit", lambda: needed[0] - 1)
    start(tmp_path / "split", *arguments)
    told = capsys.readouterr().out
    assert "memory: 4 runs together need " in told
    assert "they train in groups of 2" in told
    assert len(list((tmp_path / "split" / "checkpoints").glob("policy-*"))) == 2
    for run in range(4):
        for left, right in zip(
            found(tmp_path / "whole", run)[1], found(tmp_path / "split", run)[1], strict=True
        ):
            np.testing.assert_array_equal(left, right)


def test_each_size_that_does_not_fit_is_told_with_its_own_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(groups, "_memory_limit", lambda: 3 * 2**30)
    told: list[str] = []
    # Two GiB of data are in every group.
    assert groups.fitting_size(9, lambda size: (size + 2) * 2**30, told.append) == 1
    assert [text.split(" of ")[0] for text in told] == [
        "memory: 9 runs together need 11.0 GiB",
        "memory: 2 runs together need 4.0 GiB",
    ]


@pytest.mark.parametrize("way", ["map", "vmap"])
def test_how_runs_are_worked_off_is_asked_for(
    start: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    lowered = []

    def lower(learner: Any, *arguments: Any) -> None:
        lowered.append((learner.__name__, arguments[-2]))
        raise InterruptedError

    monkeypatch.setattr(training, "train_chunk", SimpleNamespace(lower=lower))
    for name, own in (("appo", TINY), ("bc", CLONING)):
        with pytest.raises(InterruptedError):
            start(tmp_path / name, *own, f"--runs_axis={way}")
    assert lowered == [("appo_jax.reward_model", way), ("appo_jax.bc", way)]


@pytest.mark.slow  # in single precision `tests/test_learners.py` compares every learner
def test_vmap_agrees_in_double_precision(tmp_path: Path) -> None:
    code = (ROOT / "tests" / "helpers" / "grid_in_float64.py").read_text()
    process = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "JAX_ENABLE_X64": "1"},
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, process.stderr


_EIGHT_DEVICES = """
import json, sys
sys.path[:0] = [sys.argv[1]]
import jax
from tests.helpers.runs import FakeEvaluation, parse
from appo_jax import evaluation
from experiments.runs import curves, runner
assert len(jax.devices()) == 8
evaluation.start = FakeEvaluation
curves.plot = lambda path, *_: path.touch()
compile = jax.stages.Lowered.compile
texts = []
def noting(lowered, *arguments):
    compiled = compile(lowered, *arguments)
    texts.append(compiled.as_text())
    return compiled
jax.stages.Lowered.compile = noting
runner.run(*parse(*sys.argv[2:]))
(policy,) = texts
assert "num_partitions=8" in policy.splitlines()[0]
for collective in ("all-gather", "all-reduce", "all-to-all", "collective-permute"):
    assert collective not in policy, collective
"""


@pytest.mark.parametrize(
    ("way", "go_on"),
    [
        ("map", False),
        pytest.param("map", True, marks=pytest.mark.slow),
        pytest.param("vmap", False, marks=pytest.mark.slow),
    ],
)
def test_spread_over_eight_devices(
    data_dir: Path, start: Callable[..., Any], tmp_path: Path, way: str, go_on: bool
) -> None:
    """Ten runs on eight devices: two on each, six of them repeats."""
    flags = (*CLONING, f"--task={TASK}", "--learning_rate=0.03", "--num_feedback=40")
    flags += ("--seed=0", "--num_seeds=10", "--num_updates=20", "--eval_interval=10")
    process = subprocess.run(
        [
            *(sys.executable, "-c", _EIGHT_DEVICES, str(ROOT)),
            *flags,
            f"--data_dir={data_dir}",
            *("--chunk_updates=2", "--workdir=eight", f"--runs_axis={way}"),
        ],
        cwd=tmp_path,
        env={**os.environ, **xla_flags("--xla_force_host_platform_device_count=8")},
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, process.stderr
    start(tmp_path / "one", *flags, "--chunk_updates=10")
    for run in range(10):
        eight, one = found(tmp_path / "eight", run), found(tmp_path / "one", run)
        if way == "map":
            assert_same(eight, one)
        for left, right in zip(eight[1], one[1], strict=True):
            np.testing.assert_allclose(left, right, atol=1e-4)
    with pytest.raises(InputError, match="run 10, expected 0 to 9"):
        load_policy(tmp_path / "eight", 10)
    if not go_on:
        return
    # What eight devices began, one goes on with.
    start(tmp_path / "eight", *flags, "--num_updates=30")
    start(tmp_path / "one", *flags, "--num_updates=30")
    for run in (0, 9):
        for left, right in zip(
            found(tmp_path / "eight", run)[1], found(tmp_path / "one", run)[1], strict=True
        ):
            np.testing.assert_array_equal(left, right)


def test_chunks_are_shorter_on_a_cpu_and_of_many_rows() -> None:
    assert [groups.Slots.of(1, "map", None).chunk_updates(wanted) for wanted in (None, 7)] == [
        100,
        7,
    ]
    assert [groups.Slots.of(20, how, None).chunk_updates(None) for how in ("map", "vmap")] == [
        5,
        100,
    ]
    assert groups.Slots.of(200, "map", None).chunk_updates(None) == 1


def test_flags_of_a_grid(data_dir: Path) -> None:
    base = (*TINY, f"--data_dir={data_dir}")
    runs, execution = parse(*base, "--num_seeds=3", "--seed=5")
    assert [run.seed for run in runs] == [5, 6, 7]
    assert execution.workdir.parts[:3] == ("runs", "grid", "appo")
    assert execution.workdir != parse(*base, "--num_seeds=2", "--seed=5")[1].workdir
    alone = parse(*base, "--num_seeds=1", "--seed=5")
    assert alone[1].workdir.parts[:3] == ("runs", TASK, "appo")
    assert dataclasses.asdict(alone[0][0]) == dataclasses.asdict(parse(*base, "--seed=5")[0][0])
    json.dumps([run.identity() for run in runs])
    for bad, message in {
        "--seed=1,2": "--num_seeds=3: --seed names 2 already, expected one of the two",
        "--lam=0.1,-1": "--lam=-1.0: expected a number from 0",
        f"--task={TASK},{TASK}-v2": f"--task={TASK},{TASK}-v2: one task twice",
        f"--task={TASK},swep": "--task: task 'swep' is none of",
        "--num_feedback=3,0": "--num_feedback=0: expected a whole number from 1",
        "--runs_axis=pmap": "--runs_axis=pmap: expected auto, map or vmap",
        "--runs_per_group=-1": "--runs_per_group=-1: expected a whole number from 0",
        "--num_seeds=0": "--num_seeds=0: expected a whole number from 1",
    }.items():
        with pytest.raises(InputError, match=f"^{message}"):
            parse(*base, "--num_seeds=3", bad)
    for bad in ("--lam=0.1,0.1", "--seed=1,", "--num_feedback=a"):
        with pytest.raises(flags.IllegalFlagValueError, match=f"flag {bad}: "):
            parse(*base, bad)


def test_the_table_is_over_seeds(start: Callable[..., Any], tmp_path: Path) -> None:
    (found,) = start(tmp_path, "--num_updates=20")
    runs = [
        dataclasses.replace(
            found, settings={**found.settings, "lam": lam, "seed": seed}, success_rate=rate
        )
        for seed, (lam, rate) in enumerate(((0.03, 10.0), (0.03, 30.0), (0.1, 80.0)))
    ]
    stopped = dataclasses.replace(
        found,
        settings={**found.settings, "seed": 7},
        success_rate=None,
        total_return=None,
        state="diverged",
    )
    first, second = results.table([*runs, stopped]).splitlines()[1:]
    # Of 10 and 30: mean 20, standard deviation sqrt(200) = 14.1.
    assert first.split() == ["0.03", "2", "20.0", "+-", "14.1", "(1", "diverged)"]
    assert second.split() == ["0.1", "1", "80.0"]
