"""Folders of sweeps whose runs were never trained: settings are real, scores made up."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from experiments.reporting.figures import Drawing
from experiments.runs import files
from experiments.runs.experiment import Experiment
from experiments.runs.files import EVALUATED, STOPPED
from experiments.runs.folder import RunFolder
from experiments.sweep import read_runs
from experiments.sweeps import definition, plan
from experiments.sweeps.definition import Definition, Narrowing, Wanted
from experiments.sweeps.plan import Grid

NOWHERE = Path("nowhere")
# In the end; None for a run that is not begun.
Score = Callable[[Experiment], float | None]


def wanted(name: str, narrowing: Narrowing = Narrowing()) -> list[Wanted]:  # noqa: B008
    """The runs of a definition, wherever their data are."""
    return definition.expand(definition.read(name), narrowing, NOWHERE, read_runs)[0]


def of_flags(**flags: object) -> list[Wanted]:
    """The runs of one table of a definition."""
    table = {name: value if isinstance(value, list) else [value] for name, value in flags.items()}
    return definition.expand(Definition("made", "", (table,)), Narrowing(), NOWHERE, read_runs)[0]


def write(runs: Sequence[Wanted], workdir: Path, score: Score, share: float = 1.0) -> list[Path]:
    """Folders as a sweep leaves them, up to a share of the updates."""
    grids = plan.make(runs, workdir).grids
    for grid in grids:
        train(grid, score, share)
    return [grid.execution.workdir for grid in grids]


def train(
    grid: Grid,
    score: Score,
    share: float = 1.0,
    diverged: Callable[[Experiment], bool] = lambda _: False,
) -> None:
    """What a grid's training leaves in its folder."""
    folder = grid.execution.workdir
    folder.mkdir(parents=True, exist_ok=True)
    RunFolder(grid.runs, grid.execution).write()
    metrics = files.MetricsFile(folder / "metrics.csv")
    metrics.keep(lambda _: False)  # writes the header
    first, numbered = grid.runs[0], dict(enumerate(grid.runs))
    stopped = [run for run, one in numbered.items() if diverged(one)]
    if stopped:
        metrics.append(7, "train", dict.fromkeys(stopped, {STOPPED: 5.0}))
    finals = {
        run: final
        for run, one in numbered.items()
        if run not in stopped and (final := score(one)) is not None
    }
    for update in range(first.eval_interval, first.num_updates + 1, first.eval_interval):
        if update <= share * first.num_updates and finals:
            late = min(1.0, 2 * update / first.num_updates)
            metrics.append(update, "train", dict.fromkeys(finals, {"loss": 1.0}))
            names = ("eval/success_rate", "eval/success_rate_at_end", "eval/return")
            rows = {
                run: {**dict.fromkeys(names, late * final), EVALUATED: 1.0}
                for run, final in finals.items()
            }
            metrics.append(update, "eval", rows)


def not_drawn(patch: pytest.MonkeyPatch) -> None:
    """Let reports have figures without drawing them, which takes seconds."""
    patch.setattr(Drawing, "save", lambda *_: None)
    patch.setattr(Drawing, "svg", lambda drawing: f'<svg id="{drawing.name}-1"/>')
