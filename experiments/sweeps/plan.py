"""What of a sweep is done, and the grids that are left.

A grid is a folder of runs that train in one program. A run counts as finished wherever below the
sweep's folder it finished. A grid that was begun is gone on with as it is; one that diverged in
part has those runs tried once more, apart from the others.
"""

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from appo_jax import training
from experiments.runs import files, results
from experiments.runs.experiment import (
    Execution,
    Experiment,
    differing,
    digest,
    label,
    named_settings,
)
from experiments.runs.folder import RunFolder
from experiments.runs.results import RunResult
from experiments.sweeps.definition import Wanted

Key = tuple[str, int]
# In the sweep's folder. JOBS: of a cluster, scripts and logs.
PLAN_FILE, JOBS = "sweep.json", "jobs"
# In which the runs of a grid may differ.
_AXES = ("env_name", "dataset", "num_feedback", "swept", "seed")
_ATTEMPTS = 2


@dataclasses.dataclass(frozen=True)
class Grid:
    """Runs that train in one program, and where."""

    runs: tuple[Experiment, ...]
    execution: Execution

    @property
    def algorithm(self) -> str:
        """That of all its runs."""
        return self.runs[0].algorithm

    @property
    def title(self) -> str:
        """For a person."""
        return f"{self.algorithm}, {len(self.runs)} run{'s' * (len(self.runs) > 1)}"

    @property
    def name(self) -> str:
        """Its folder's."""
        return self.execution.workdir.name


@dataclasses.dataclass(frozen=True)
class Plan:
    """grids: those to launch. finished: runs that need nothing. given_up: runs that diverged as
    often as they are tried. notes: for a person.
    """

    grids: tuple[Grid, ...]
    finished: tuple[Key, ...]
    given_up: tuple[Key, ...]
    notes: tuple[str, ...]


def make(wanted: Sequence[Wanted], workdir: Path) -> Plan:
    """Look at the sweep's folder, and divide what is left into grids."""
    by_key = {one.key: one for one in wanted}
    folders: dict[Path, list[RunResult]] = {}
    for result in results.read_all([workdir])[0]:
        folders.setdefault(Path(result.folder), []).append(result)
    found = [result for own in folders.values() for result in own]
    finished = {_key(result) for result in found if result.state == "finished"}
    diverged = [_key(result) for result in found if result.state == "diverged"]
    left = [key for key in by_key if key not in finished and diverged.count(key) < _ATTEMPTS]
    grids, notes = [], []
    for folder, own in folders.items():
        keys = [_key(result) for result in own]
        open_ones = [k for k, one in zip(keys, own, strict=True) if one.state == "unfinished"]
        asked = [key for key in open_ones if key in left]
        if len(asked) == len(open_ones) and asked and all(key in by_key for key in keys):
            runs = tuple(by_key[key].run for key in keys)
            grids.append(Grid(runs, _execution(by_key[keys[0]], folder)))
            left = [key for key in left if key not in keys]
        elif asked:
            notes.append(
                f"{folder} holds {len(keys)} runs that were begun together, and not all of them "
                f"are asked for now: it is left as it is, and {len(asked)} of them begin anew"
            )
    for again in (False, True):
        for group in _groups([by_key[key] for key in left if (key in diverged) == again]):
            grids.append(_new(group, workdir, again))
    given_up = [key for key in by_key if key not in finished and diverged.count(key) >= _ATTEMPTS]
    return Plan(
        tuple(grids),
        tuple(key for key in by_key if key in finished),
        tuple(given_up),
        tuple(notes),
    )


def _key(result: RunResult) -> Key:
    return result.digest, result.num_updates


def _groups(wanted: Sequence[Wanted]) -> Iterator[list[Wanted]]:
    """Runs that can train in one program."""
    groups: dict[str, list[Wanted]] = {}
    for one in wanted:
        resolved = one.run.resolved()
        shared = {name: value for name, value in resolved.items() if name not in _AXES}
        groups.setdefault(json.dumps([shared, str(one.execution.preferences)]), []).append(one)
    yield from groups.values()


def _new(group: Sequence[Wanted], workdir: Path, again: bool) -> Grid:
    runs = tuple(one.run for one in group)
    name = f"{runs[0].algorithm.replace(':', '.')}-{runs[0].num_updates}-{digest(runs)}"
    return Grid(runs, _execution(group[0], workdir / (name + "-again" * again)))


def _execution(one: Wanted, folder: Path) -> Execution:
    return dataclasses.replace(one.execution, workdir=folder)


def grouped(grid: Grid) -> Execution:
    """How the process that trains a grid carries it out, to be asked there: devices differ.

    Raises InputError as `RunFolder` does.
    """
    own, runs = grid.execution, grid.runs
    in_turn = training.choose_runs_axis(own.runs_axis) == "map"
    if own.runs_per_group or not in_turn:
        return own
    # Runs in turn gain nothing from being many: one setting after another comes to its end.
    seeds = len({run.seed for run in runs})
    whole = next(size for size in range(seeds, 0, -1) if len(runs) % size == 0)
    size = RunFolder(runs, own).group_size() or whole
    return dataclasses.replace(own, runs_per_group=size)


def describe(grid: Grid) -> list[str]:
    """The runs of a grid, a line for each setting with its seeds."""
    settings = [named_settings(run.resolved()) for run in grid.runs]
    names = [name for name in differing(settings) if name not in ("seed", "env_name")]
    lines: dict[str, list[str]] = {}
    for own in settings:
        text = ", ".join(filter(None, [own["env_name"], label(own, names)]))
        lines.setdefault(text, []).append(str(own["seed"]))
    return [
        f"{text}, {'seeds' if len(seeds) > 1 else 'seed'} {', '.join(seeds)}"
        for text, seeds in lines.items()
    ]


def write(workdir: Path, name: str, about: str, wanted: Sequence[Wanted]) -> None:
    """Leave what is asked for in the sweep's folder, for reports of a sweep under way."""
    runs = [{"digest": one.run.digest(), "resolved": one.run.resolved()} for one in wanted]
    content = {"experiment": name, "about": about, "runs": runs, "failed": {}}
    files.write_json(workdir / PLAN_FILE, content)


def note_failures(workdir: Path, failed: Mapping[str, str]) -> None:
    """Leave why runs, by digest, aren't finished."""
    content: dict[str, Any] = files.read_json(workdir / PLAN_FILE) or {}
    files.write_json(workdir / PLAN_FILE, {**content, "failed": dict(failed)})
