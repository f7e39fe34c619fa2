"""What is launched, once more, or never again."""

import io
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from experiments.runs import files
from experiments.runs.events import Report
from experiments.runs.folder import RunFolder
from experiments.runs.signals import Stopped
from experiments.sweeps import launch, plan
from experiments.sweeps.definition import Wanted
from experiments.sweeps.plan import Grid
from experiments.terminal.sweep_progress import Progress
from tests.helpers import sweeps


def runs(**flags: object) -> list[Wanted]:
    common = {"dataset": "medium-replay", "task": ["sweep", "dial-turn"], "num_seeds": 2}
    return sweeps.of_flags(**{**common, "algorithm": ["appo", "mr"], **flags})


class Launched:
    """A launcher that trains nothing; `problems` are raised in turn, None lets a grid finish."""

    def __init__(self, *problems: BaseException | None, share: float = 1.0):
        self.grids: list[Grid] = []
        self._problems, self._share = list(problems), share

    def __call__(self, grid: Grid, report: Report) -> None:
        self.grids.append(grid)
        if self._problems and (problem := self._problems.pop(0)) is not None:
            raise problem
        sweeps.train(grid, lambda _: 50.0, self._share)


def launched(
    wanted: Sequence[Wanted], workdir: Path, launcher: Callable[[Grid, Report], None]
) -> tuple[dict[str, str], str]:
    workdir.mkdir(exist_ok=True)
    plan.write(workdir, "made", "", wanted)
    lines = io.StringIO()
    progress = Progress(sum(one.run.num_updates for one in wanted), lines)
    return launch.launch_all(wanted, workdir, progress, launch.in_turn(launcher)), lines.getvalue()


def test_a_grid_for_each_program(tmp_path: Path) -> None:
    launcher = Launched()
    failed, _ = launched(runs(reward=["learned"]), tmp_path / "sweep", launcher)
    assert not failed
    assert [(grid.algorithm, len(grid.runs)) for grid in launcher.grids] == [("appo", 4), ("mr", 4)]
    # In turn on a CPU: one setting's seeds after another's.
    assert {plan.grouped(grid).runs_per_group for grid in launcher.grids} == {2}


def test_groups_are_decided_where_a_grid_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (grid,) = plan.make(runs(algorithm="appo"), tmp_path).grids
    assert grid.execution.runs_per_group == 0
    trained: list[int] = []
    monkeypatch.setattr(
        launch.runner, "run", lambda _, own, report: trained.append(own.runs_per_group)
    )
    launch.in_process(grid, print)
    monkeypatch.setattr(plan.training, "choose_runs_axis", lambda wanted: "vmap")
    launch.in_process(grid, print)  # on an accelerator: as many as fit
    monkeypatch.undo()
    assert trained == [2, 0]
    tmp_path.joinpath(grid.name).mkdir()
    RunFolder(grid.runs, grid.execution).settle_group_size(4)
    assert plan.grouped(grid).runs_per_group == 4  # what the folder was begun with


def test_a_finished_run_is_never_run_again(tmp_path: Path) -> None:
    workdir = tmp_path / "sweep"
    launched(runs(num_seeds=1), workdir, Launched())
    again = Launched()
    launched(runs(num_seeds=1), workdir, again)
    assert not again.grids
    # More seeds: those alone are new. A longer run is another run.
    launched(runs(num_seeds=3), workdir, again)
    assert [sorted({run.seed for run in grid.runs}) for grid in again.grids] == [[1, 2], [1, 2]]
    longer = Launched()
    launched(runs(algorithm="appo", num_seeds=1, num_updates=300_000), workdir, longer)
    assert [len(grid.runs) for grid in longer.grids] == [2]


def test_a_failed_grid_is_told_of_and_tried_once_more(tmp_path: Path) -> None:
    launcher = Launched(ValueError("no luck\nmore"), None)
    failed, lines = launched(runs(), tmp_path / "sweep", launcher)
    assert not failed
    assert [grid.algorithm for grid in launcher.grids] == ["appo", "mr", "appo"]
    assert "failed: appo-250000-" in lines
    assert "no luck (all of it in " in lines
    assert "once more, what isn't finished:" in lines
    assert files.read_json(tmp_path / "sweep" / "sweep.json")["failed"] == {}


def test_one_that_fails_twice_is_left(tmp_path: Path) -> None:
    workdir = tmp_path / "sweep"
    launcher = Launched(MemoryError(), None, OSError("full"))
    failed, _ = launched(runs(), workdir, launcher)
    assert len(launcher.grids) == 3
    folder = launcher.grids[0].execution.workdir
    assert set(failed.values()) == {f"full (all of it in {folder / 'error.txt'})"}
    assert set(failed) == {run.digest() for run in launcher.grids[0].runs}
    assert files.read_json(workdir / "sweep.json")["failed"] == failed
    assert "OSError: full" in (folder / "error.txt").read_text()
    again = Launched()
    assert not launched(runs(), workdir, again)[0]
    assert [grid.algorithm for grid in again.grids] == ["appo"]
    assert not (folder / "error.txt").exists()


def test_a_signal_ends_the_sweep(tmp_path: Path) -> None:
    import signal

    launcher = Launched(Stopped(signal.SIGTERM, "update 5"))
    with pytest.raises(Stopped):
        launched(runs(), tmp_path / "sweep", launcher)
    assert len(launcher.grids) == 1


def test_a_grid_under_way_is_gone_on_with_as_it_is(tmp_path: Path) -> None:
    workdir = tmp_path / "sweep"
    launched(runs(), workdir, Launched(share=0.5))
    again = Launched()
    launched(runs(lam=0.03, algorithm="appo"), workdir, again)
    (grid,) = again.grids
    assert grid.execution.workdir.name.startswith("appo-250000-")
    assert grid.execution.runs_per_group == 0  # what the folder was begun with
    assert len(list(workdir.glob("appo-*"))) == 1


def test_a_grid_under_way_that_is_more_than_asked_for_is_left(tmp_path: Path) -> None:
    workdir = tmp_path / "sweep"
    launched(runs(algorithm="appo"), workdir, Launched(share=0.5))
    fewer = Launched()
    _, lines = launched(runs(algorithm="appo", num_seeds=1), workdir, fewer)
    assert "holds 4 runs that were begun together, and not all of them are asked for now" in lines
    (grid,) = fewer.grids
    assert [run.seed for run in grid.runs] == [0, 0]


def test_diverged_runs_are_tried_once_more_apart(tmp_path: Path) -> None:
    workdir = tmp_path / "sweep"
    grids: list[Grid] = []

    def diverging(grid: Grid, report: Report) -> None:
        grids.append(grid)
        sweeps.train(grid, lambda _: 50.0, diverged=lambda run: run.seed == 1)

    wanted = runs(algorithm="appo", task="sweep", num_seeds=3)
    launched(wanted, workdir, diverging)
    assert [[run.seed for run in grid.runs] for grid in grids] == [[0, 1, 2], [1]]
    assert grids[1].name.endswith("-again")
    launched(wanted, workdir, diverging)
    assert len(grids) == 2
    assert plan.make(wanted, workdir).given_up == (wanted[1].key,)
