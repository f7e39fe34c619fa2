"""Slurm through submitit, or, where there is no Slurm, submitit's processes on this machine."""

import dataclasses
import re
from pathlib import Path

import submitit

from appo_jax.types import InputError
from experiments.sweeps.clusters.cluster import Failed, Lost, Resources, carry_out, placed
from experiments.sweeps.plan import JOBS, Grid


class Slurm:
    """A cluster of jobs. One whose time is over submitit queues again, three times at most."""

    def __init__(self, workdir: Path, resources: Resources, compilation_cache: bool):
        self._carry_out = _CarryOut(compilation_cache)
        self._executor = submitit.AutoExecutor(folder=(workdir / JOBS).absolute())
        memory = {"mem_gb": resources.grid_memory_gb} if resources.grid_memory_gb else {}
        self._executor.update_parameters(
            name="appo-jax",
            timeout_min=60 * resources.grid_hours,
            cpus_per_task=resources.grid_cpus,
            gpus_per_node=resources.grid_gpus,
            slurm_additional_parameters=_parameters(resources.slurm),
            **memory,
        )

    def submit(self, grid: Grid) -> "_Job":
        """Queue a grid."""
        return _Job(self._executor.submit(self._carry_out, placed(grid)))

    def close(self) -> None:
        """Nothing is held."""


@dataclasses.dataclass(frozen=True)
class _CarryOut:
    """`carry_out`, which goes on from what is on disk: submitit asks how."""

    compilation_cache: bool

    def __call__(self, grid: Grid) -> Failed | None:
        return carry_out(grid, self.compilation_cache)

    def checkpoint(self, grid: Grid) -> submitit.helpers.DelayedSubmission:
        return submitit.helpers.DelayedSubmission(self, grid)


class _Job:
    def __init__(self, job: submitit.Job[Failed | None]):
        self._job = job

    def done(self) -> bool:
        return self._job.done()

    def result(self) -> Failed | None:
        try:
            return self._job.result()
        except submitit.core.utils.UncompletedJobError as error:  # or what `carry_out` raised
            self.cancel()  # Slurm may have queued it again, and another one gets its folder
            raise Lost(f"job {self._job.job_id}, log {self._job.paths.stderr}") from error

    def cancel(self) -> None:
        self._job.cancel(check=False)


def _parameters(text: str) -> dict[str, str]:
    found = {}
    for part in filter(None, text.split(",")):
        match = re.fullmatch(r"([\w-]+)=(.+)", part.strip())
        if match is None:
            raise InputError(f"--slurm={text}: found {part!r}, expected name=value, with commas")
        found[match[1].replace("-", "_")] = match[2]
    return found
