"""The statistics of a report: of the variants of each table, over tasks and seeds."""

import dataclasses
from collections.abc import Mapping

import numpy as np

from experiments.reporting import statistics
from experiments.reporting.cells import Block
from experiments.reporting.statistics import Estimate, Scores
from experiments.reporting.tables import Table, estimate

THRESHOLDS = np.arange(0.0, 100.0, 2.5)  # percent, of the profiles
MIN_SEEDS = 3  # of one task; several tasks of fewer seeds are samples enough for an interval
ABOUT_LEFT_OUT = (
    "Compared are tables with a task that is complete in all columns that have a complete one: "
    f"with one such task from {MIN_SEEDS} seeds on, returns of several tasks never."
)


@dataclasses.dataclass(frozen=True)
class Statistics:
    """Of one block. subject: whose improvement over the others `improvements` gives. notes: what
    was left out.
    """

    block: Block
    subject: str
    means: Mapping[str, Estimate]
    profiles: Mapping[str, list[Estimate]]
    improvements: Mapping[str, Estimate]
    notes: tuple[str, ...]

    def table(self) -> Table:
        """The numbers."""
        rows = tuple(
            (
                variant,
                estimate(mean),
                estimate(self.improvements[variant], 2) if variant in self.improvements else "-",
            )
            for variant, mean in self.means.items()
        )
        header = (
            *("algorithm", f"interquartile mean, {self.block.unit}"),
            f"P({self.subject} > it)",
        )
        title = f"{self.block.title}, over tasks and seeds"
        return Table(title, header, rows, self.notes)


def of_block(block: Block) -> Statistics | None:
    """The statistics of a table, over the tasks of which all shown variants are complete.

    None where there is no such task, or one of fewer than `MIN_SEEDS` seeds, or scores of several
    tasks can't be compared (returns).
    """
    variants, tasks = block.comparable(block.variants)
    left_out = [one for one in block.variants if one not in variants]
    if not tasks or not (block.knows_success or len(block.tasks) == 1):
        return None
    seeds = max(len(cell.seeds) for cell in block.cells.values())
    if len(tasks) == 1 and seeds < MIN_SEEDS:
        return None
    scores: dict[str, Scores] = {
        one: [block.cells[task, one].scores for task in tasks] for one in variants
    }
    subject = variants[0]
    notes = [
        f"95 % intervals of 10,000 stratified bootstrap replicates over {len(tasks)} "
        f"task{'s' * (len(tasks) > 1)} of {seeds} seed{'s' * (seeds > 1)}."
    ]
    if seeds < MIN_SEEDS:
        notes.append("Intervals over so few seeds are too narrow to rely on.")
    dropped = [task for task in block.tasks if task not in tasks]
    if dropped:
        notes.append(f"Left out, since a run is missing: {', '.join(dropped)}.")
    if left_out:
        notes.append(f"Left out, since no task is complete: {', '.join(left_out)}.")
    return Statistics(
        block=block,
        subject=subject,
        means={one: statistics.interquartile_mean(own) for one, own in scores.items()},
        profiles={
            one: statistics.performance_profile(own, THRESHOLDS) for one, own in scores.items()
        }
        if block.knows_success
        else {},
        improvements={
            one: statistics.probability_of_improvement(scores[subject], own)
            for one, own in scores.items()
            if one != subject
        },
        notes=tuple(notes),
    )
