"""Runs arranged in tables: what shares a cell differs in nothing but its seed.

A table (a block) has one kind of data and one number of labels, a row for each task and a column
for each variant: an algorithm, and what else differs between runs of that algorithm.
"""

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from appo_jax import registry, settings
from appo_jax.envs import environment, meta_world
from experiments.runs import results
from experiments.runs.experiment import Experiment, differing, label
from experiments.runs.results import LAST_EVALUATIONS, RunResult

# Of all runs, whatever their algorithm; they are told apart in the names of variants.
_COMMON = {field.name for field in settings.fields(Experiment)} | {"preferences_digest"}
_SAID = {"env_name", "dataset", "num_feedback", "seed"}  # by rows, tables and seeds


@dataclasses.dataclass(frozen=True)
class Cell:
    """The runs of one variant on one task. seeds: those to expect. runs: those there, by seed."""

    seeds: tuple[int, ...]
    runs: Mapping[int, RunResult]

    @property
    def finished(self) -> list[RunResult]:
        """The runs that have their result."""
        found = [self.runs[seed] for seed in self.seeds if seed in self.runs]
        return [run for run in found if run.state == "finished" and run.score is not None]

    @property
    def scores(self) -> np.ndarray:
        """Of the finished runs."""
        return np.array([run.score for run in self.finished], float)

    @property
    def is_complete(self) -> bool:
        """Whether every seed has its result."""
        return len(self.finished) == len(self.seeds)

    @property
    def mean(self) -> float | None:
        """Over the finished runs, None for none."""
        return float(self.scores.mean()) if len(self.scores) else None

    @property
    def std(self) -> float | None:
        """Standard deviation (n - 1), None for fewer than two."""
        return float(self.scores.std(ddof=1)) if len(self.scores) > 1 else None


@dataclasses.dataclass(frozen=True)
class Block:
    """One table. cells: by task and variant, only those with a run."""

    data: str
    recipe: str
    num_feedback: int
    knows_success: bool
    tasks: tuple[str, ...]
    variants: tuple[str, ...]
    cells: Mapping[tuple[str, str], Cell]

    @property
    def title(self) -> str:
        """For a person."""
        return f"{self.data}, {self.num_feedback:,} labels"

    @property
    def unit(self) -> str:
        """Of the scores."""
        return "success rate (%)" if self.knows_success else "return"

    def comparable(self, variants: Sequence[str]) -> tuple[list[str], list[str]]:
        """The variants that can be compared, and the tasks of which all of them are complete.

        A variant without a complete task can't be, and doesn't keep the others from it.
        """
        kept = [one for one in variants if self._complete_tasks([one])]
        return kept, self._complete_tasks(kept) if kept else []

    def _complete_tasks(self, variants: Sequence[str]) -> list[str]:
        return [
            task
            for task in self.tasks
            if all(
                (task, one) in self.cells and self.cells[task, one].is_complete for one in variants
            )
        ]

    def algorithm(self, variant: str) -> str:
        """That of a variant's runs."""
        return self._any(variant).algorithm

    def reads_labels(self, variant: str) -> bool:
        """Whether the number of labels says anything of a variant."""
        return reads_labels(self._any(variant))

    def ranks(self, variant: str) -> bool:
        """Whether a variant competes: of true rewards it is a bound, of wrong ones a control."""
        return self._any(variant).settings.get("reward") in ("learned", "none")

    def _any(self, variant: str) -> RunResult:
        return next(
            run
            for (_, own), cell in self.cells.items()
            for run in cell.runs.values()
            if own == variant
        )


def reads_labels(run: RunResult) -> bool:
    """Whether a run learns from labels."""
    return results.reads_labels(run.settings)


def averaged(runs: Sequence[RunResult]) -> str:
    """What the scores of runs are means of, in words."""
    counts = sorted({run.num_evaluations_averaged for run in runs if run.state == "finished"})
    if counts in ([], [LAST_EVALUATIONS]):
        return f"the mean of the last {LAST_EVALUATIONS} evaluations"
    return (
        f"the mean of the last {' or '.join(map(str, counts))} evaluations (runs were too short "
        f"for {LAST_EVALUATIONS})"
    )


def without_doubles(runs: Sequence[RunResult]) -> tuple[list[RunResult], list[str]]:
    """Each run once: of two of the same settings the one that came further, and a line for it."""
    found: dict[str, RunResult] = {}
    notes = []
    for run in runs:
        key = repr(
            sorted(
                (name, value)
                for name, value in run.settings.items()
                if name != "num_feedback" or reads_labels(run)
            )
        )
        other = found.get(key)
        if other is None:
            found[key] = run
            continue
        best = max(other, run, key=lambda one: (one.state == "finished", one.updates_done))
        less = run if best is other else other
        found[key] = best
        if less.updates_done and less.folder != best.folder:
            notes.append(
                f"{name(less)} is there twice: {less.folder} ({less.state}) is left out for "
                f"{best.folder} ({best.state})"
            )
    return list(found.values()), notes


def name(run: RunResult) -> str:
    """A run, for a person."""
    labels = f", {run.settings.get('num_feedback')} labels" if reads_labels(run) else ""
    return f"{run.algorithm} on {run.env_name}{labels}, seed {run.seed}"


def arrange(runs: Sequence[RunResult]) -> list[Block]:
    """The tables of runs, each run once. Runs that read no labels are in those of all counts."""
    data_of, variant_of = data_names(runs), variant_names(runs)
    success = {env: _knows_success(env, runs) for env in {run.env_name for run in runs}}
    counts: dict[tuple[str, bool], list[int]] = {}
    for run in runs:
        own = counts.setdefault((data_of(run), success[run.env_name]), [])
        if reads_labels(run):
            own.append(run.settings["num_feedback"])
    blocks = []
    for (data, knows_success), own in counts.items():
        members = [
            run for run in runs if (data_of(run), success[run.env_name]) == (data, knows_success)
        ]
        fallback = [members[0].settings["num_feedback"]]
        for count in sorted(set(own)) or fallback:
            inside = [
                run
                for run in members
                if not reads_labels(run) or run.settings["num_feedback"] == count
            ]
            blocks.append(_block(data, count, knows_success, inside, variant_of))
    return blocks


def _block(
    data: str,
    count: int,
    knows_success: bool,
    runs: Sequence[RunResult],
    variant_of: Callable[[RunResult], str],
) -> Block:
    seeds = tuple(sorted({run.seed for run in runs}))
    groups: dict[tuple[str, str], dict[int, RunResult]] = {}
    for run in runs:
        groups.setdefault((run.env_name, variant_of(run)), {})[run.seed] = run
    order = [*meta_world.PAPER_TASKS, *sorted({run.env_name for run in runs})]
    tasks = tuple(sorted({task for task, _ in groups}, key=order.index))
    variants = {variant_of(run): _place(run) for run in runs}
    return Block(
        data=data,
        recipe=runs[0].recipe,
        num_feedback=count,
        knows_success=knows_success,
        tasks=tasks,
        variants=tuple(sorted(variants, key=lambda one: variants[one])),
        cells={key: Cell(seeds, own) for key, own in groups.items()},
    )


def _place(run: RunResult) -> tuple[Any, ...]:
    """The order of variants: the registry's, learned rewards first, then by numbers."""
    known = list(registry.ALGORITHMS)
    place = known.index(run.algorithm) if run.algorithm in known else len(known)
    numbers = tuple(
        value
        for name, value in run.settings.items()
        if name not in _SAID and isinstance(value, int | float)
    )
    return place, run.algorithm, run.settings.get("reward") != "learned", numbers


def _knows_success(env_name: str, runs: Sequence[RunResult]) -> bool:
    seen = [one for run in runs if run.env_name == env_name for one in run.evaluations]
    if seen:
        return any(one.success_rate is not None for one in seen)
    return meta_world.is_task(env_name)


def variant_names(
    runs: Sequence[RunResult], without: Sequence[str] = ()
) -> Callable[[RunResult], str]:
    """What a run's column is called: its algorithm, and what differs between runs of it.

    without: settings that aren't said.
    """
    common = [
        name
        for name in differing([run.settings for run in runs])
        if name in _COMMON - _SAID - {"reward", *without} and not _follows_from_task(name, runs)
    ]
    names = {}
    for algorithm in dict.fromkeys(run.algorithm for run in runs):
        own = [run.settings for run in runs if run.algorithm == algorithm]
        names[algorithm] = common + [
            name
            for name in differing(own)
            if name not in {*_SAID, *common, *without} and not _follows_from_task(name, runs)
        ]

    def of(run: RunResult) -> str:
        return ", ".join(filter(None, [run.algorithm, label(run.settings, names[run.algorithm])]))

    return of


def _follows_from_task(name: str, runs: Sequence[RunResult]) -> bool:
    """Whether a setting is the environment's: the tie threshold, where nobody set another."""
    values = {(run.env_name, run.settings.get(name)) for run in runs}
    return name == "tie_threshold" and len(values) == len({env for env, _ in values})


def data_names(runs: Sequence[RunResult], of_any_size: bool = False) -> Callable[[RunResult], str]:
    """Short names of the data, the shortest that tell the sets of each environment apart.

    of_any_size: sets that differ in nothing but their size have one name.
    """
    id_of = _id_of_any_size if of_any_size else lambda run: run.dataset
    kinds: list[Callable[[RunResult], str]] = [lambda run: run.recipe]
    if not of_any_size:
        kinds.append(lambda run: f"{run.recipe}, {_size(run)}")
    kinds.append(lambda run: id_of(run).replace(environment.folder_name(run.env_name), "<task>"))
    kinds.append(id_of)
    for kind in kinds:
        sets: dict[tuple[str, str], set[str]] = {}
        for run in runs:
            sets.setdefault((run.env_name, kind(run)), set()).add(id_of(run))
        if all(len(own) == 1 for own in sets.values()):
            return kind
    return kinds[-1]


def _id_of_any_size(run: RunResult) -> str:
    """A data set's id without its size; of one that was named by its id nobody knows more."""
    return run.dataset if run.recipe == "minari" else re.sub(r"\bn\d+", "n<size>", run.dataset)


def _size(run: RunResult) -> str:
    share = share_of_paper(run)
    if share is not None and round(share, 4) in (0.1, 0.25, 0.5, 0.75, 1.0):
        return f"{share:g} of the paper's size"
    return "unknown size" if run.num_transitions is None else f"{run.num_transitions:,} transitions"


def share_of_paper(run: RunResult) -> float | None:
    """The size of a run's data set in shares of the paper's, None where either is unknown."""
    whole = meta_world.paper_size(run.env_name) if meta_world.is_task(run.env_name) else None
    return run.num_transitions / whole if whole and run.num_transitions else None
