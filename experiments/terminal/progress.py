"""What a terminal shows of a run: a bar, now and then a line elsewhere, and what is told."""

import sys
import time
from typing import TextIO

from tqdm import tqdm

from experiments.runs.events import Advanced, Began, Ended, Evaluated, Event, Paused, Told

_STEPS = 10  # lines of a stage where there is no bar


class Terminal:
    """A report (`experiments.runs.events`) that prints.

    The bar goes to stderr, lines to stdout or another stream. Without a terminal there is no bar,
    and a line at each tenth of the way says the same.
    """

    def __init__(self, lines: TextIO | None = None) -> None:
        self._lines = lines or sys.stdout
        self._bar: tqdm | None = None
        self._stage = ""

    def __call__(self, event: Event) -> None:
        """Show one event."""
        match event:
            case Told(text):
                self._say(text)
            case Began(stage, done, total, unit):
                self._begin(stage, done, total, unit)
            case Paused(seconds):
                self._start += seconds
                if self._bar is not None:
                    self._bar.unpause()
            case Advanced(_, done, total, note):
                self._advance(done, total, note)
            case Evaluated(update, metric, score, again):
                name = "return" if metric == "eval/return" else "success"
                percent = "" if metric == "eval/return" else " %"
                if not again:
                    self._say(f"{name} at update {update:,}: {score:.1f}{percent}")
                if self._bar is not None:
                    self._bar.set_postfix_str(f"{name} {score:.0f}{percent} at {update:,}")
            case Ended(stage):
                if self._bar is not None and stage == self._stage:
                    self._bar.close()
                    self._bar = None

    def close(self) -> None:
        """Leave a bar as it is, however the work ended."""
        self(Ended(self._stage))

    def _begin(self, stage: str, done: int, total: int, unit: str) -> None:
        self._stage, self._unit, self._first, self._done = stage, unit, done, done
        self._tenths = _STEPS * done // total
        self._start = time.monotonic()
        self._bar = tqdm(
            total=total,
            initial=done,
            desc=stage,
            unit=f" {unit}",
            disable=not sys.stderr.isatty(),
            mininterval=1,
            dynamic_ncols=True,
        )

    def _advance(self, done: int, total: int, note: str) -> None:
        if self._bar is None:
            return
        is_first = self._done == self._first
        self._bar.update(done - self._done)
        self._done = done
        if note:
            self._bar.set_postfix_str(note)
        tenths = _STEPS * done // total
        if is_first or (self._bar.disable and tenths > self._tenths):
            self._say(f"{self._stage}: {done:,} of {total:,} {self._unit}{self._left(total)}")
        self._tenths = tenths

    def _say(self, text: str) -> None:
        """Print a line, above the bar where there is one."""
        tqdm.write(text, file=self._lines)
        self._lines.flush()

    def _left(self, total: int) -> str:
        left = total - self._done
        if not left:
            return ""
        rate = (self._done - self._first) / max(time.monotonic() - self._start, 1e-9)
        return f", {rate:,.1f} {self._unit}/s, about {duration(left / rate)} left"


def duration(seconds: float) -> str:
    """A time, for a person."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
