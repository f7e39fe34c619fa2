"""What a sweep asks of a cluster: to take a grid, and to say when it is over.

Every machine of it sees the same folders and has this package installed.
"""

import dataclasses
import importlib
import traceback
from pathlib import Path
from typing import Any, Protocol

from appo_jax.settings import Settings, setting
from appo_jax.types import InputError, first_line
from experiments.runs import compiled, runner
from experiments.runs.events import Event, Told
from experiments.runs.signals import Stopped
from experiments.sweeps import plan
from experiments.sweeps.plan import Grid

# By name: module and class; each is an extra of its name.
_KNOWN = {
    "submitit": ("experiments.sweeps.clusters.slurm", "Slurm"),
    "ray": ("experiments.sweeps.clusters.ray_cluster", "RayCluster"),
}


@dataclasses.dataclass(frozen=True)
class Resources(Settings):
    """What each grid gets, and from whom."""

    grid_cpus: int = setting(2, "cores of each grid, and its simulator processes")
    grid_gpus: int = setting(0, "GPUs of each grid", low=0)
    grid_memory_gb: int | None = setting(
        None, "GB of memory of each grid; if left out, the cluster decides"
    )
    grid_hours: int = setting(
        24, "Slurm's time limit of a grid, in hours; then it is queued again, at most 3 times"
    )
    grids_at_once: int = setting(0, "grids at once; 0: as many as the cluster takes", low=0)
    slurm: str = setting("", "more for Slurm, like partition=gpu,account=me")
    ray_address: str = setting(
        "", "of the Ray cluster of this machine, or auto; if left out, one is started here"
    )


@dataclasses.dataclass(frozen=True)
class Failed:
    """What went wrong in a grid: a sentence, and where."""

    sentence: str
    traceback: str

    @classmethod
    def of(cls, error: Exception) -> "Failed":
        """What an error that is being handled says."""
        return cls(first_line(error), traceback.format_exc())


class Lost(Exception):
    """A grid's worker is gone or was told to go, or its machine is; what is on disk is not."""


class Job(Protocol):
    """A grid that a cluster has taken."""

    def done(self) -> bool:
        """Whether it is over."""

    def result(self) -> Failed | None:
        """None for a grid that is finished. Raises Lost."""

    def cancel(self) -> None:
        """End it."""


class Cluster(Protocol):
    """Takes grids, for `carry_out`; made with the arguments of `connect` but for the name."""

    def submit(self, grid: Grid) -> Job:
        """Queue a grid."""

    def close(self) -> None:
        """No more grids come."""


def connect(name: str, workdir: Path, resources: Resources, compilation_cache: bool) -> Cluster:
    """The cluster of that name. Raises InputError where its extra isn't installed.

    compilation_cache: whether workers keep compiled programs in their user's cache folder.
    """
    module, cls = _KNOWN[name]
    try:
        importlib.import_module(name)
    except ImportError as error:
        raise InputError(
            f"--launcher={name}: {error}, expected what `pip install 'appo-jax[{name}]'` adds"
        ) from error
    made: Cluster = getattr(importlib.import_module(module), cls)(
        workdir, resources, compilation_cache
    )
    return made


def placed(grid: Grid) -> Grid:
    """The grid as another process carries it out, wherever that one begins."""
    own = grid.execution
    execution = dataclasses.replace(
        own,
        workdir=own.workdir.absolute(),
        data_dir=own.data_dir.absolute(),
        preferences=own.preferences and own.preferences.absolute(),
    )
    return dataclasses.replace(grid, execution=execution)


def carry_out(grid: Grid, compilation_cache: bool) -> Failed | None:
    """Train a grid in this process, the cluster's; what is told goes to its log.

    Raises Lost after a signal: the cluster wants the machine for something else.
    """
    try:
        if compilation_cache:
            compiled.use_compilation_cache()
        runner.run(grid.runs, plan.grouped(grid), _log)
    except Stopped as stopped:
        raise Lost(str(stopped)) from stopped
    except Exception as error:
        return Failed.of(error)
    return None


def _log(event: Event) -> Any:
    if isinstance(event, Told):
        print(event.text, flush=True)
