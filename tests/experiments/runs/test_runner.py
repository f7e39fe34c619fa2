"""A run stopped anywhere and started again ends as one that was never stopped.

Evaluations are made up from the policy's parameters, so that a wrong snapshot shows in their rows;
test_train.py has the real ones.
"""

import dataclasses
import functools
import itertools
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from appo_jax import checkpoint, policy
from appo_jax.data import preferences
from appo_jax.types import Diverged, InputError
from experiments.runs import curves, datasets, files, runner, signals
from experiments.runs.evaluations import Evaluations
from experiments.runs.events import Evaluated, Event, Report, Told
from experiments.runs.loop import Loop
from experiments.runs.results import RunResult
from experiments.train import summary
from tests.helpers.runs import (
    TASK,
    TINY,
    FakeEvaluation,
    contents,
    metadata,
    parse,
    print_told,
    result,
    signal_at,
    tiny,
    write_buffers,
)

pytestmark = pytest.mark.usefixtures("fake_evaluations")
ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def start(data_dir: Path) -> Callable[..., RunResult]:
    def start(workdir: Path, *arguments: str, report: Report = print_told) -> RunResult:
        places = (f"--workdir={workdir}", f"--data_dir={data_dir}")
        return runner.run(*parse(*TINY, *places, *arguments), report)[0]

    return start


@dataclasses.dataclass
class Uninterrupted:
    workdir: Path
    entry: RunResult
    snapshots: list[Path]  # the folder before each write


@pytest.fixture(scope="module")
def uninterrupted(
    tmp_path_factory: pytest.TempPathFactory, start: Callable[..., Any]
) -> Uninterrupted:
    folder = tmp_path_factory.mktemp("uninterrupted")
    workdir, snapshots = folder / "run", []

    def before(function: Callable[..., Any]) -> Callable[..., Any]:
        def write(*args: Any, **kwargs: Any) -> Any:
            target = folder / f"snapshot{len(snapshots)}"
            if not snapshots or contents(workdir) != {
                workdir / path.relative_to(snapshots[-1]): content
                for path, content in contents(snapshots[-1]).items()
            }:
                snapshots.append(shutil.copytree(workdir, target))
            return function(*args, **kwargs)

        return write

    with pytest.MonkeyPatch.context() as patch:
        for owner, name in (
            (files.MetricsFile, "append"),
            (files.MetricsFile, "keep"),
            (checkpoint, "save"),
            (checkpoint, "delete"),
            (preferences, "save"),
            (files, "write_json"),
            (curves, "plot"),
        ):
            patch.setattr(owner, name, before(getattr(owner, name)))
        entry = start(workdir)
    return Uninterrupted(workdir, entry, snapshots)


def test_a_policy_of_observations_as_they_are(start: Callable[..., Any], tmp_path: Path) -> None:
    assert start(tmp_path, "--num_updates=20", "--nonormalise_observations").state == "finished"
    normaliser = policy.load(tmp_path).policy.normaliser
    assert (normaliser.mean == 0).all()
    assert (normaliser.std == 1).all()


def test_goes_on_with_a_run_from_before_a_setting_came(
    start: Callable[..., Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start(tmp_path, "--num_updates=20")
    config = files.read_json(tmp_path / "config.json")
    for written in (*config["runs"], *config["identities"]):
        del written["normalise_observations"]
    files.write_json(tmp_path / "config.json", config)
    with pytest.raises(InputError, match="normalise_observations True, not False"):
        start(tmp_path, "--num_updates=40", "--nonormalise_observations")
    start(tmp_path, "--num_updates=40")
    assert "going on from update 20" in capsys.readouterr().out


def test_evaluates_each_interval_and_the_end(uninterrupted: Uninterrupted) -> None:
    rows = files.MetricsFile(uninterrupted.workdir / "metrics.csv").rows
    evaluated = [row["update"] for row in rows if row["metric"] == "eval/success_rate"]
    assert evaluated == [0, 20, 40, 60]
    assert [one.update for one in uninterrupted.entry.evaluations] == evaluated
    trained = [row["update"] for row in rows if row["metric"] == "critic/loss"]
    assert trained == list(range(5, 61, 5))
    rates = [one.success_rate for one in uninterrupted.entry.evaluations[1:]]
    assert uninterrupted.entry.success_rate == pytest.approx(np.mean(rates))
    assert summary([uninterrupted.entry]) == (
        f"success rate {np.mean(rates):.1f} % (the mean of the last 3 evaluations; success at any "
        "step of an episode)"
    )


def test_results_are_on_disk_at_each_evaluation_and_the_first_changes_nothing(
    uninterrupted: Uninterrupted,
    start: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = []

    def report(event: Event) -> None:
        if isinstance(event, Evaluated):
            (run,) = files.read_json(tmp_path / "summary.json")["runs"]
            found.append((event.update, [one["update"] for one in run["evaluations"]]))
            (tmp_path / "learning_curve.png").unlink()

    monkeypatch.setattr(Evaluations, "begin", lambda _: None)  # none before the first update
    start(tmp_path, report=report)
    assert found == [(20, [20]), (40, [20, 40]), (60, [20, 40, 60])]
    assert result(tmp_path)[0] == result(uninterrupted.workdir)[0]


@pytest.mark.parametrize(
    "first", [0, *(pytest.param(first, marks=pytest.mark.slow) for first in (1, 2, 3))]
)
def test_killed_between_any_two_writes(
    uninterrupted: Uninterrupted, start: Callable[..., Any], tmp_path: Path, first: int
) -> None:
    expected = result(uninterrupted.workdir)
    assert len(uninterrupted.snapshots) >= 20
    # Two chunks between evaluations say all that four do.
    seen: dict[tuple[int, ...], Path] = {}
    for snapshot in uninterrupted.snapshots:
        seen.setdefault(_stage(snapshot), snapshot)
    for stage, snapshot in list(seen.items())[first::4]:
        workdir = shutil.copytree(snapshot, tmp_path / snapshot.name)
        entry = start(workdir)
        assert result(workdir) == expected, f"{stage} {snapshot}"
        assert entry.evaluations == uninterrupted.entry.evaluations


def _stage(snapshot: Path) -> tuple[int, ...]:
    rows = files.MetricsFile(snapshot / "metrics.csv").rows
    splits = [row["split"] for row in rows]
    trained = max((row["update"] for row in rows), default=0)
    others = len([p for p in snapshot.glob("*") if p.is_file()])
    saved = checkpoint.updates(snapshot / "checkpoints" / "policy")
    return (others, splits.count("reward"), splits.count("eval"), trained // 10, *saved)


@pytest.mark.parametrize("left", ["row", "half a row", "rate only"])
def test_killed_while_it_wrote_an_evaluation(
    uninterrupted: Uninterrupted, start: Callable[..., Any], tmp_path: Path, left: str
) -> None:
    workdir = shutil.copytree(uninterrupted.workdir, tmp_path / "run")
    (workdir / "summary.json").unlink()
    path = workdir / "metrics.csv"
    lines = path.read_bytes().splitlines(keepends=True)
    assert b"eval/success_rate," in lines[-4]
    last = {"row": lines[-3], "half a row": lines[-3][:-9], "rate only": b""}[left]
    path.write_bytes(b"".join(lines[:-3]) + last)
    start(workdir)
    assert result(workdir) == result(uninterrupted.workdir)


def test_parameters_do_not_depend_on_chunks(
    uninterrupted: Uninterrupted, start: Callable[..., Any], tmp_path: Path
) -> None:
    entry = start(tmp_path / "run", "--chunk_updates=3")
    metrics = files.MetricsFile(tmp_path / "run" / "metrics.csv")
    ends = list(metrics.values(0, "train", "critic/loss"))
    assert ends == [*range(3, 20, 3), 20, *range(23, 40, 3), 40, *range(43, 60, 3), 60]
    assert result(tmp_path / "run")[0] == result(uninterrupted.workdir)[0]
    assert entry.evaluations == uninterrupted.entry.evaluations


def test_finished_run_only_tells(
    uninterrupted: Uninterrupted, start: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datasets, "obtain", None)
    before = contents(uninterrupted.workdir)
    assert start(uninterrupted.workdir) == uninterrupted.entry
    with pytest.raises(InputError, match=r"--num_updates=40: .* has 60 updates already"):
        start(uninterrupted.workdir, "--num_updates=40")
    with pytest.raises(InputError, match=r"--workdir=.* swept: lam 0.03, not 0.1; expected"):
        start(uninterrupted.workdir, "--lam=0.1")
    with pytest.raises(InputError, match=r"reward_model: num_epochs 2, not 3"):
        start(uninterrupted.workdir, "--reward_num_epochs=3")
    with (
        files.locked(uninterrupted.workdir),
        pytest.raises(InputError, match="another process is at work there"),
    ):
        start(uninterrupted.workdir)
    assert contents(uninterrupted.workdir) == before


def test_more_updates_extend_a_run(
    uninterrupted: Uninterrupted, start: Callable[..., Any], tmp_path: Path
) -> None:
    workdir = tmp_path / "run"
    shorter = start(workdir, "--num_updates=30")
    assert [one.update for one in shorter.evaluations] == [0, 20, 30]
    longer = start(workdir)
    assert longer.evaluations == uninterrupted.entry.evaluations
    assert result(workdir) == result(uninterrupted.workdir)
    assert files.read_json(workdir / "config.json")["runs"][0]["num_updates"] == 60
    assert longer.wall_seconds > shorter.wall_seconds


def test_a_run_learns_from_ranked_lists(start: Callable[..., RunResult], tmp_path: Path) -> None:
    entry = start(tmp_path, "--feedback=seqrank", "--num_feedback=6", "--num_updates=20")
    assert (entry.state, entry.settings["feedback"]) == ("finished", "seqrank")
    header, *pairs = (tmp_path / "preferences.jsonl").read_text().splitlines()
    assert '"dataset": "lire/' in header
    # A chain of six comparisons, in lists that go one way each, implies the pairs between them.
    assert 6 < len(pairs) <= 7 * 6 / 2
    assert all('"labeller": "scripted, seqrank"' in pair for pair in pairs)
    metrics = files.MetricsFile(tmp_path / "metrics.csv")
    assert metrics.values(0, "reward", "reward/fresh_pairs")
    assert list(metrics.values(0, "eval", "eval/success_rate")) == [0, 20]


def test_signal_at_the_end_of_a_chunk(
    uninterrupted: Uninterrupted,
    start: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    for number, update in ((signal.SIGINT, 10), (signal.SIGTERM, 40)):
        with monkeypatch.context() as patch:
            patch.setattr(time, "time", itertools.count(0, -1000).__next__)  # a clock set back
            signal_at(patch, update, number)
            with pytest.raises(
                signals.Stopped, match=f"stopped by {number.name} at update"
            ) as stop:
                start(tmp_path)
        assert stop.value.exit_code == 128 + number
        assert checkpoint.updates(tmp_path / "checkpoints" / "policy")[-1] == update
        assert before == (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM))
    entry = start(tmp_path)
    assert result(tmp_path) == result(uninterrupted.workdir)
    clock = metadata(tmp_path)["clock"]
    assert clock["timed_updates"] == 60
    assert 0 < clock["train_seconds"] < clock["wall_seconds"] < 1000
    assert entry.updates_per_second == pytest.approx(60 / clock["train_seconds"])
    assert entry.wall_seconds >= clock["wall_seconds"]


def test_while_a_chunk_is_waited_for_a_second_signal_is_offered() -> None:
    looks, told = iter([False, False, True]), []
    late: Any = SimpleNamespace(is_ready=lambda: next(looks))
    nothing: Any = None
    came = [signal.SIGINT]
    Loop(nothing, None, 0, nothing, nothing, nothing, told.append, came, 0.0)._wait_for_device(late)
    assert told == [Told("stopping at the end of this chunk (Ctrl-C again: at once)")]


def test_second_signal_acts_at_once(
    uninterrupted: Uninterrupted,
    start: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patch:
        signal_at(patch, 25, signal.SIGINT, signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            start(tmp_path)
    assert checkpoint.updates(tmp_path / "checkpoints" / "policy") == [20]
    start(tmp_path)
    assert result(tmp_path) == result(uninterrupted.workdir)


def test_signal_while_it_waits_for_an_evaluation(
    uninterrupted: Uninterrupted,
    start: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    timer = threading.Timer(0.5, signal.raise_signal, [signal.SIGINT])
    with monkeypatch.context() as patch:
        patch.setattr(FakeEvaluation, "looks", 1000)  # 20 s
        patch.setattr(Evaluations, "take", _after_first(timer.start))
        began = time.monotonic()
        with pytest.raises(signals.Stopped, match="at update 40"):
            start(tmp_path)
    assert time.monotonic() - began < 15
    start(tmp_path)
    assert result(tmp_path) == result(uninterrupted.workdir)


def test_keeps_what_an_evaluation_still_needs(
    uninterrupted: Uninterrupted,
    start: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = tmp_path / "checkpoints" / "policy"
    for update in (25, 30, 35):  # each time before the evaluation at 20 is over
        with monkeypatch.context() as patch:
            patch.setattr(FakeEvaluation, "looks", 10**9)
            signal_at(patch, update, signal.SIGINT)
            with pytest.raises(signals.Stopped):
                start(tmp_path)
    assert checkpoint.updates(folder) == [20, 25, 30, 35]
    start(tmp_path)
    assert result(tmp_path) == result(uninterrupted.workdir)
    assert checkpoint.updates(folder) == [35, 40, 60]


def _after_first(act: Callable[[], None]) -> Callable[..., None]:
    take = Evaluations.take

    def taking(watcher: Any, update: int, states: Any) -> None:
        take(watcher, update, states)
        if update == 20:
            act()

    return taking


def test_dead_worker(
    uninterrupted: Uninterrupted,
    start: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def die(_: FakeEvaluation) -> None:
        raise BrokenProcessPool

    with monkeypatch.context() as patch:
        patch.setattr(FakeEvaluation, "result", die)
        with pytest.raises(BrokenProcessPool):
            start(tmp_path)
    start(tmp_path)
    assert result(tmp_path) == result(uninterrupted.workdir)


def test_changed_data(
    start: Callable[..., Any], uninterrupted: Uninterrupted, tmp_path: Path
) -> None:
    workdir = _unfinished(uninterrupted, tmp_path / "run")
    write_buffers(tmp_path / "data", seed=1)
    with pytest.raises(InputError, match=r"data set lire/.*: digest '\w+', not '\w+' as when"):
        start(workdir, f"--data_dir={tmp_path / 'data'}")


def test_jax_set_otherwise(start: Callable[..., Any], tmp_path: Path) -> None:
    before = jax.config.values["jax_enable_x64"]
    jax.config.update("jax_enable_x64", True)
    try:
        with pytest.raises(InputError, match="^JAX_ENABLE_X64 is True, expected False, with which"):
            start(tmp_path / "run")
    finally:
        jax.config.update("jax_enable_x64", before)
    assert not (tmp_path / "run").exists()


def test_a_finished_run_without_its_config_is_nobodys(
    uninterrupted: Uninterrupted, start: Callable[..., Any], tmp_path: Path
) -> None:
    workdir = shutil.copytree(uninterrupted.workdir, tmp_path / "run")
    (workdir / "config.json").unlink()
    before = contents(workdir)
    for arguments in ((), ("--lam=0.1", "--seed=1")):
        with pytest.raises(InputError, match="but not its config.json, expected both or an empty"):
            start(workdir, *arguments)
    assert contents(workdir) == before


def test_foreign_folder(start: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"lam": 0.03}')
    with pytest.raises(InputError, match=r"--workdir=.*config.json is not from a run"):
        start(tmp_path)
    assert {path.name for path in contents(tmp_path)} == {"config.json", ".lock"}


def test_a_damaged_checkpoint_is_put_aside(
    uninterrupted: Uninterrupted,
    start: Callable[..., Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for damaged, going_on in (((60,), "40"), ((40, 60), "20"), ((20, 40, 60), None)):
        workdir = _unfinished(uninterrupted, tmp_path / str(len(damaged)))
        folder = workdir / "checkpoints" / "policy"
        for update in damaged:
            _damage(folder / str(update))
        start(workdir)
        told = capsys.readouterr().out
        for update in damaged:
            assert f"checkpoint {folder}/{update}: damaged, " in told
            assert f"checkpoint of update {update} put aside: {folder}-damaged/{update}-" in told
        if going_on:
            assert f"going on from update {going_on}" in told
        else:
            assert "no earlier checkpoint is left: training starts anew" in told
        assert result(workdir) == result(uninterrupted.workdir)


def test_a_damaged_checkpoint_that_an_evaluation_needs(
    uninterrupted: Uninterrupted,
    start: Callable[..., Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    workdir = _unfinished(uninterrupted, tmp_path / "run")
    metrics = files.MetricsFile(workdir / "metrics.csv")
    metrics.keep(lambda row: (row["split"], row["update"]) != ("eval", 40))
    _damage(workdir / "checkpoints" / "policy" / "40")
    start(workdir)
    told = capsys.readouterr().out
    assert "checkpoint of update 40 put aside" in told
    assert "checkpoint of update 60 put aside" in told
    assert "going on from update 20" in told
    assert result(workdir) == result(uninterrupted.workdir)


def test_a_damaged_reward_model_is_fitted_again(
    uninterrupted: Uninterrupted,
    start: Callable[..., Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    workdir = _unfinished(uninterrupted, tmp_path / "run")
    checkpoint.delete(workdir / "checkpoints" / "policy", 60)
    _damage(workdir / "checkpoints" / "reward-40" / "2")
    start(workdir)
    told = capsys.readouterr().out
    assert "checkpoints/reward-40/2: damaged, " in told
    assert "no earlier checkpoint is left: training starts anew" in told
    assert "going on from update 40" in told
    assert result(workdir) == result(uninterrupted.workdir)


def test_a_checkpoint_of_another_run_is_refused(
    uninterrupted: Uninterrupted, start: Callable[..., Any], tmp_path: Path
) -> None:
    start(tmp_path / "other", "--lam=0.1")
    workdir = _unfinished(uninterrupted, tmp_path / "run")
    for update in (20, 40, 60):
        shutil.rmtree(workdir / "checkpoints" / "policy" / str(update))
    shutil.copytree(
        tmp_path / "other" / "checkpoints" / "policy" / "20",
        workdir / "checkpoints" / "policy" / "20",
    )
    before = contents(workdir)
    with pytest.raises(
        InputError, match=r"policy/20: run 0 has swept: lam 0.1, not 0.03; expected"
    ):
        start(workdir)
    assert contents(workdir) == before


def _unfinished(uninterrupted: Uninterrupted, target: Path) -> Path:
    shutil.copytree(uninterrupted.workdir, target)
    (target / "summary.json").unlink()
    return target


def _damage(saved: Path) -> None:
    """Flip bits all over the largest file: a part of it, seldom the same, is no longer in use."""
    largest = max((saved / "arrays").rglob("d/*"), key=lambda path: path.stat().st_size)
    content = bytearray(largest.read_bytes())
    content[::50] = bytes(byte ^ 1 for byte in content[::50])
    largest.write_bytes(content)


def test_numbers_that_go_wrong_stop_the_run(start: Callable[..., Any], tmp_path: Path) -> None:
    """A huge lambda overflows Adam's second moment in the first chunk."""
    with pytest.raises(Diverged) as stop:
        start(tmp_path, "--lam=1e30")
    text = str(stop.value)
    assert text.startswith(f"run 0 (env_name {TASK}-v3, seed 0): critics.optimiser.")
    assert "is not finite in updates 1 to 5, expected finite numbers; no checkpoint yet" in text
    assert checkpoint.updates(tmp_path / "checkpoints" / "policy") == []
    metrics = files.MetricsFile(tmp_path / "metrics.csv")
    assert metrics.values(0, "train", files.STOPPED) == {5: 0.0}


def test_numbers_that_go_wrong_later_leave_the_last_good_checkpoint(
    uninterrupted: Uninterrupted,
    start: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patch:
        _poison(patch, 30)
        for _ in range(2):  # the second time it goes on from there, and comes to the same end
            with pytest.raises(Diverged, match="updates 31 to 35, .* of update 20"):
                start(tmp_path)
            assert checkpoint.updates(tmp_path / "checkpoints" / "policy") == [20]
            rows = files.MetricsFile(tmp_path / "metrics.csv")
            assert list(rows.values(0, "eval", "eval/success_rate")) == [0, 20]
    start(tmp_path)
    assert result(tmp_path) == result(uninterrupted.workdir)


def _poison(patch: pytest.MonkeyPatch, update: int) -> None:
    train_chunk = Loop._train_chunk

    def poisoned(loop: Any) -> None:
        if loop.update == update and loop._work.split == "train":
            program = loop._work.program
            program._store = program._store.replace(rewards=program._store.rewards * np.nan)
        train_chunk(loop)

    patch.setattr(Loop, "_train_chunk", poisoned)


KILLED = """
import signal, sys
import pytest
from appo_jax import evaluation
from experiments.runs import runner
from tests.helpers.runs import FakeEvaluation, parse, signal_at
with pytest.MonkeyPatch.context() as patch:
    patch.setattr(evaluation, "start", FakeEvaluation)
    signal_at(patch, int(sys.argv[1]), signal.SIGKILL)
    runner.run(*parse(*sys.argv[2:]))
"""


def test_stopped_in_a_reward_fit(start: Callable[..., Any], tmp_path: Path) -> None:
    flags = ("--reward_num_epochs=30", "--num_updates=20")
    with pytest.MonkeyPatch.context() as patch:
        signal_at(patch, 15, signal.SIGTERM, split="reward")
        with pytest.raises(signals.Stopped):
            start(tmp_path / "run", *flags)
    assert checkpoint.updates(tmp_path / "run" / "checkpoints" / "reward-40") == [15]
    with pytest.MonkeyPatch.context() as patch:
        signal_at(patch, 10, signal.SIGTERM, split="reward")  # which isn't met again
        assert start(tmp_path / "run", *flags).state == "finished"
    start(tmp_path / "whole", *flags)
    assert result(tmp_path / "run") == result(tmp_path / "whole")


def test_killed_between_the_phases_of_a_learner(
    data_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """CPL with 23 updates of cloning, killed in the chunk behind them: the last checkpoint is of
    update 20, so that going on crosses over once more. Then stopped while the rate rises.
    """
    flags = [flag for flag in tiny("cpl") if "data_dir" not in flag]
    flags += ["--cloning_share=0.38", "--warmup_share=0.5"]
    folder = tmp_path / "run"
    start_cpl = functools.partial(runner.run, report=print_told)
    of_run = [*flags, f"--data_dir={data_dir}", f"--workdir={folder}"]
    killed = subprocess.run([sys.executable, "-c", KILLED, "25", *of_run], cwd=ROOT)
    assert killed.returncode == -signal.SIGKILL
    assert checkpoint.updates(folder / "checkpoints" / "policy") == [20]
    with pytest.MonkeyPatch.context() as patch:
        signal_at(patch, 35, signal.SIGTERM)
        with pytest.raises(signals.Stopped):
            start_cpl(*parse(*of_run))
    assert "going on from update 20" in capsys.readouterr().out
    start_cpl(*parse(*of_run))
    whole = tmp_path / "whole"
    start_cpl(*parse(*flags, f"--data_dir={data_dir}", f"--workdir={whole}"))
    assert result(folder) == result(whole)
    rates = files.MetricsFile(whole / "metrics.csv").values(0, "train", "actor/learning_rate")
    assert rates[20] == pytest.approx(1e-4)
    assert rates[25] < 1e-4  # of three updates full, of two a thirtieth and two
    with pytest.raises(InputError, match="num_updates"):
        start_cpl(
            *parse(*flags, f"--data_dir={data_dir}", f"--workdir={whole}", "--num_updates=70")
        )
