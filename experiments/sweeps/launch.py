"""The grids of a sweep: one after another here, or together on a cluster.

`Launcher` is the seam: `in_turn` makes one of whoever takes a grid and returns when its folder
holds the results, or raises; `on` makes one of a cluster, whose workers may be lost.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol, TypeAlias

from appo_jax.data import atomic, minari_io
from experiments.runs import runner, signals
from experiments.runs.events import Event, Report
from experiments.runs.signals import Stopped
from experiments.sweeps import plan
from experiments.sweeps.clusters.cluster import Cluster, Failed, Job, Lost
from experiments.sweeps.definition import Wanted
from experiments.sweeps.plan import Grid

ERROR_FILE = "error.txt"
_LOSSES = 3  # of its worker, after which a grid counts as failed
_POLL = 0.5  # seconds between two looks at a cluster's jobs


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

    def end(self, number: int) -> None:
        """The grid of that number is over, elsewhere."""


# Of grids and their display: each grid's number once it is over, and what went wrong, if anything.
Launcher: TypeAlias = Callable[[Sequence[Grid], Display], Iterator[tuple[int, Failed | None]]]


def in_process(grid: Grid, report: Report) -> None:
    """Train here, in one program."""
    runner.run(grid.runs, plan.grouped(grid), report)


def in_turn(launch: Callable[[Grid, Report], object] = in_process) -> Launcher:
    """One grid after another."""

    def launched(grids: Sequence[Grid], display: Display) -> Iterator[tuple[int, Failed | None]]:
        for number, grid in enumerate(grids):
            display.begin(number)
            yield number, _try(grid, display, launch)

    return launched


def on(cluster: Cluster, at_once: int = 0) -> Launcher:
    """As many grids together as the cluster takes, or `at_once`.

    A grid whose worker is lost is given to another one, which goes on from the last checkpoint.
    After a signal it raises Stopped, with all jobs cancelled.
    """

    def launched(grids: Sequence[Grid], display: Display) -> Iterator[tuple[int, Failed | None]]:
        waiting, losses = list(range(len(grids))), [0] * len(grids)
        jobs: dict[int, Job] = {}
        with signals.noted() as came, _cancelling(jobs):
            while waiting or jobs:
                for number in _ready(grids, waiting, list(jobs), at_once):
                    display.begin(number)
                    waiting.remove(number)
                    jobs[number] = cluster.submit(grids[number])
                over = [number for number, job in jobs.items() if job.done()]
                if came:  # sent to all processes, it ends workers too, and they aren't lost
                    raise Stopped(came[0], f"{len(jobs)} grids under way")
                for number in over:
                    try:
                        problem = jobs.pop(number).result()
                    except Lost as lost:
                        losses[number] += 1
                        problem = Failed(f"its worker was lost {losses[number]} times", str(lost))
                        if losses[number] < _LOSSES:
                            display.say(
                                f"{grids[number].name}: its worker was lost ({lost}); another one "
                                "goes on from the last checkpoint"
                            )
                            waiting.append(number)
                            continue
                    display.end(number)
                    yield number, problem
                if not over:
                    time.sleep(_POLL)

    return launched


@contextlib.contextmanager
def _cancelling(jobs: dict[int, Job]) -> Iterator[None]:
    """Cancel what a block leaves under way."""
    try:
        yield
    finally:
        for job in jobs.values():
            job.cancel()


def _ready(
    grids: Sequence[Grid], waiting: Sequence[int], running: Sequence[int], at_once: int
) -> list[int]:
    """Those that can begin: no two may collect the same data set."""
    found: list[int] = []
    collected = set[str]().union(*(_to_collect(grids[number]) for number in running))
    for number in waiting:
        own = _to_collect(grids[number])
        has_room = not at_once or len(running) + len(found) < at_once
        if has_room and not own & collected:
            found.append(number)
            collected |= own
    return found


def _to_collect(grid: Grid) -> set[str]:
    """The data sets that aren't there yet, which the grid makes before it trains."""
    own = {run.dataset.id for run in grid.runs if run.dataset.source == "collected"}
    return {id for id in own if not minari_io.exists(id, grid.execution.data_dir)}


def launch_all(
    wanted: Sequence[Wanted],
    workdir: Path,
    progress: Display,
    launch: Launcher | None = None,
) -> dict[str, str]:
    """Launch what is left; what fails is launched once more when all others are done.

    Returns why runs, by digest, aren't finished. Raises Stopped after a signal.
    """
    failed: dict[str, str] = {}
    launch = launch or in_turn()
    for attempt in (1, 2):
        found = plan.make(wanted, workdir)
        for note in found.notes:
            progress.say(note)
        if attempt == 2 and found.grids:
            progress.say("once more, what isn't finished:")
        progress.plan(found.grids)
        for number, failure in launch(found.grids, progress):
            grid = found.grids[number]
            own = {run.digest() for run in grid.runs}
            failed = {run: why for run, why in failed.items() if run not in own}
            problem = _noted(grid, failure)
            if problem:
                progress.say(f"failed: {grid.name}: {problem}")
                failed |= dict.fromkeys(own, problem)
            plan.note_failures(workdir, failed)
    finished = {digest for digest, _ in plan.make(wanted, workdir).finished}
    return {run: why for run, why in failed.items() if run not in finished}


def _try(grid: Grid, report: Report, launch: Callable[[Grid, Report], object]) -> Failed | None:
    try:
        launch(grid, report)
    except Stopped:
        raise
    except Exception as error:  # whatever it is, the other grids can go on
        return Failed.of(error)
    return None


def _noted(grid: Grid, failure: Failed | None) -> str | None:
    """What went wrong, in a sentence; the traceback is left in the grid's folder."""
    file = grid.execution.workdir / ERROR_FILE
    if failure is None:
        file.unlink(missing_ok=True)
        return None
    file.parent.mkdir(parents=True, exist_ok=True)
    with atomic.replacing(file) as partial:
        partial.write_text(failure.traceback)
    return f"{failure.sentence} (all of it in {file})"
