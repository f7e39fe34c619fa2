"""One display for a whole sweep: how much of it is done, and how long the rest takes."""

import sys
import time
from collections.abc import Sequence
from typing import TextIO

from tqdm import tqdm

from experiments.runs.events import Advanced, Began, Evaluated, Event, Paused, Told
from experiments.sweeps.plan import Grid
from experiments.terminal.progress import duration

_TRAINING = "training"  # the stage of `Loop` whose updates are counted here


class Progress:
    """A report (`experiments.runs.events`) of grid after grid.

    It counts updates of policies, of all runs. How long is left follows from the seconds that an
    update of each algorithm took in this start; those that weren't seen yet count as the mean.
    """

    def __init__(self, total: int, lines: TextIO | None = None):
        """total: updates of all runs."""
        self._lines = lines or sys.stdout
        self._total = total
        self._grids: list[Grid] = []
        self._left: list[int] = []  # updates, of each grid
        self._seconds: dict[str, float] = {}  # seen in this start, by algorithm
        self._updates: dict[str, int] = {}
        self._number, self._at, self._runs = 0, 0, 1
        self._began = time.monotonic()
        self._note = ""
        self._percent = -10
        self._tenths = 0  # of a reward fit
        self._bar = tqdm(
            total=self._total,
            desc="sweep",
            disable=not sys.stderr.isatty(),
            dynamic_ncols=True,
            bar_format="{desc} {percentage:3.0f}%|{bar}| {postfix}",
        )

    def plan(self, grids: Sequence[Grid]) -> None:
        """These are left; all else is done."""
        self._grids = list(grids)
        self._left = [sum(run.num_updates for run in grid.runs) for grid in grids]

    def say(self, text: str) -> None:
        """Print a line, above the bar where there is one."""
        tqdm.write(text, file=self._lines)
        self._lines.flush()

    def begin(self, number: int) -> None:
        """The grid of that number, from 0, is next."""
        self._number, self._note = number, ""
        self.say(f"{self._where()}: {self._grids[number].execution.workdir}")

    def end(self, number: int) -> None:
        """The grid of that number is over, elsewhere."""
        self._number, self._note, self._left[number] = number, "", 0
        self.say(f"{self._where()}: over")
        self._show()

    def _where(self) -> str:
        grid = self._grids[self._number]
        return f"grid {self._number + 1} of {len(self._grids)} ({grid.title})"

    def close(self) -> None:
        """Leave the bar as it is."""
        self._bar.close()

    def __call__(self, event: Event) -> None:
        """Show one event of the grid under way."""
        match event:
            case Told(text):
                self.say(f"  {text}")
            case Began(stage, done, _, _, runs) if stage == _TRAINING:
                self._began = time.monotonic()
                self._at, self._runs, self._note = done, runs, ""
                self._left[self._number] -= done * runs
            case Began(stage):
                self._note, self._tenths = stage, 0
                if self._bar.disable:
                    self.say(f"  {stage}")
                self._show()
            case Paused(seconds):
                self._began += seconds
            case Advanced(stage, done, _, _) if stage == _TRAINING:
                self._advance(done)
            case Advanced(stage, done, total, _):
                self._note = f"{stage} {100 * done // total} %"
                tenths = 10 * done // total
                if self._bar.disable and tenths > self._tenths:
                    self.say(f"  {self._note}")
                self._tenths = tenths
                self._show()
            case Evaluated(update, metric, score, _):
                unit = "" if metric == "eval/return" else " %"
                self._note = f"{score:.0f}{unit} at {update:,}"
            case _:
                pass

    def _advance(self, done: int) -> None:
        own, now = self._grids[self._number].algorithm, time.monotonic()
        updates = (done - self._at) * self._runs
        self._seconds[own] = self._seconds.get(own, 0.0) + now - self._began
        self._updates[own] = self._updates.get(own, 0) + updates
        self._left[self._number] -= updates
        self._at, self._began = done, now
        self._show()

    def seconds_left(self) -> float | None:
        """None as long as no update was seen."""
        rates = {own: self._seconds[own] / n for own, n in self._updates.items() if n}
        if not rates:
            return None
        mean = sum(rates.values()) / len(rates)
        return sum(
            rates.get(grid.algorithm, mean) * max(0, left)
            for grid, left in zip(self._grids, self._left, strict=True)
        )

    def _show(self) -> None:
        done = max(0, self._total - sum(max(0, left) for left in self._left))
        seconds = self.seconds_left()
        left = f", about {duration(seconds)} left" if seconds else ""
        note = f", {self._note}" if self._note else ""
        percent = 100 * done // self._total
        text = f"{self._where()}{note}{left}"
        if self._bar.disable and percent // 10 > self._percent // 10:
            self.say(f"sweep {percent} %: {text}")
            self._percent = percent
        self._bar.n = done
        self._bar.set_postfix_str(text)
