"""What a run tells while it goes on, to whoever shows it: a terminal, a page, another process."""

import dataclasses
from collections.abc import Callable
from typing import TypeAlias


@dataclasses.dataclass(frozen=True)
class Told:
    """A sentence for a person."""

    text: str


@dataclasses.dataclass(frozen=True)
class Began:
    """Work that is counted in `unit`s begins, or goes on, at `done` of `total`.

    runs: how many train together.
    """

    stage: str
    done: int
    total: int
    unit: str = "updates"
    runs: int = 1


@dataclasses.dataclass(frozen=True)
class Paused:
    """The last `seconds` went into something else than the work that is counted."""

    seconds: float


@dataclasses.dataclass(frozen=True)
class Advanced:
    """So much of a stage is done. note: how well it does, for a bar."""

    stage: str
    done: int
    total: int
    note: str = ""


@dataclasses.dataclass(frozen=True)
class Evaluated:
    """An evaluation ended: the mean of `metric` over runs, in percent or a return.

    again: it had ended before, and a run that goes on tells of it once more.
    """

    update: int
    metric: str
    score: float
    again: bool = False


@dataclasses.dataclass(frozen=True)
class Ended:
    """A stage is over, or left."""

    stage: str


Event: TypeAlias = Told | Began | Paused | Advanced | Evaluated | Ended
Report: TypeAlias = Callable[[Event], None]


def silent(_: Event) -> None:
    """A report that nobody reads."""


class Counter:
    """A callback of `(done, total, note)` that reports a stage.

    The first call says what is there already, from an earlier start.
    """

    def __init__(self, report: Report, stage: str, unit: str):
        self._report, self._stage, self._unit = report, stage, unit
        self._has_begun = False

    def __call__(self, done: int, total: int, note: str = "") -> None:
        """So much is done now."""
        if self._has_begun:
            self._report(Advanced(self._stage, done, total, note))
        else:
            self._report(Began(self._stage, done, total, self._unit))
            self._has_begun = True
