"""The grids of a sweep, launched one after another.

`Launcher` is the seam for other places to train in: whoever takes a grid and returns when its
folder holds the results, or raises, can stand where `in_process` stands.
"""

import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, TypeAlias

from appo_jax.data import atomic
from experiments.runs import runner
from experiments.runs.events import Event, Report
from experiments.sweeps import plan
from experiments.sweeps.definition import Wanted
from experiments.sweeps.plan import Grid
from experiments.terminal.signals import Stopped

Launcher: TypeAlias = Callable[[Grid, Report], object]
ERROR_FILE = "error.txt"


class Display(Protocol):
    """Who is told of the grids, and of what happens in the one under way."""

    def __call__(self, event: Event) -> None:
        """An event of the grid's runs."""

    def plan(self, grids: Sequence[Grid]) -> None:
        """These are left; all else is done."""

    def begin(self, number: int) -> None:
        """The grid of that number, from 0, is next."""

    def say(self, text: str) -> None:
        """A sentence."""


def in_process(grid: Grid, report: Report) -> None:
    """Train here, in one program."""
    runner.run(grid.runs, grid.execution, report)


def launch_all(
    wanted: Sequence[Wanted],
    workdir: Path,
    progress: Display,
    launch: Launcher = in_process,
) -> dict[str, str]:
    """Launch what is left; what fails is launched once more when all others are done.

    Returns why runs, by digest, aren't finished. Raises Stopped after a signal.
    """
    failed: dict[str, str] = {}
    for attempt in (1, 2):
        found = plan.make(wanted, workdir)
        for note in found.notes:
            progress.say(note)
        if attempt == 2 and found.grids:
            progress.say("once more, what isn't finished:")
        progress.plan(found.grids)
        for number, grid in enumerate(found.grids):
            progress.begin(number)
            problem = _try(grid, progress, launch)
            own = dict.fromkeys((run.digest() for run in grid.runs), problem)
            failed = {run: why for run, why in failed.items() if run not in own}
            if problem:
                progress.say(f"failed: {grid.name}: {problem}")
                failed |= {run: str(why) for run, why in own.items()}
            plan.note_failures(workdir, failed)
    finished = {digest for digest, _ in plan.make(wanted, workdir).finished}
    return {run: why for run, why in failed.items() if run not in finished}


def _try(grid: Grid, progress: Display, launch: Launcher) -> str | None:
    """What went wrong, in a sentence; the traceback is left in the grid's folder."""
    file = grid.execution.workdir / ERROR_FILE
    try:
        launch(grid, progress)
    except Stopped:
        raise
    except Exception as error:  # whatever it is, the other grids can go on
        file.parent.mkdir(parents=True, exist_ok=True)
        with atomic.replacing(file) as partial:
            partial.write_text(traceback.format_exc())
        first = (str(error).splitlines() or [""])[0]
        return f"{first or type(error).__name__} (all of it in {file})"
    file.unlink(missing_ok=True)
    return None
