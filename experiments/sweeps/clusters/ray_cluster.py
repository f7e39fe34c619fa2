"""Ray: a task for each grid, on a cluster that runs already, or on this machine."""

import logging
from pathlib import Path
from typing import Any

import ray
from ray import exceptions

from appo_jax.types import InputError, first_line
from experiments.sweeps.clusters.cluster import Failed, Lost, Resources, carry_out, placed
from experiments.sweeps.plan import Grid

_GB = 10**9


class RayCluster:
    """A cluster of Ray's; each grid gets a process of its own, which ends with it."""

    def __init__(self, workdir: Path, resources: Resources, compilation_cache: bool):
        own: dict[str, Any] = {} if resources.ray_address else {"include_dashboard": False}
        address = resources.ray_address or "local"
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **own)
        _check_fits(resources)
        self._compilation_cache = compilation_cache
        memory: Any = resources.grid_memory_gb
        self._carry_out: Any = ray.remote(
            num_cpus=resources.grid_cpus,
            num_gpus=resources.grid_gpus,
            memory=memory and memory * _GB,
            max_calls=1,
            max_retries=0,  # the sweep does that, and says so
        )(carry_out)

    def submit(self, grid: Grid) -> "_Job":
        """Queue a grid."""
        return _Job(self._carry_out.remote(placed(grid), self._compilation_cache))

    def close(self) -> None:
        """Leave the cluster, or end the one that was started here."""
        ray.shutdown()


class _Job:
    def __init__(self, reference: Any):
        self._reference = reference

    def done(self) -> bool:
        return bool(ray.wait([self._reference], timeout=0)[0])

    def result(self) -> Failed | None:
        try:
            found: Failed | None = ray.get(self._reference)
            return found
        except exceptions.RayError as error:  # or what `carry_out` raised
            raise Lost(first_line(error)) from error

    def cancel(self) -> None:
        ray.cancel(self._reference, force=True)


def _check_fits(resources: Resources) -> None:
    """Raise InputError for more than any machine has: Ray would wait for one for ever."""
    machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    wanted = {"CPU": resources.grid_cpus, "GPU": resources.grid_gpus}
    wanted["memory"] = (resources.grid_memory_gb or 0) * _GB
    if not any(all(own.get(k, 0) >= v for k, v in wanted.items()) for own in machines):
        ray.shutdown()
        raise InputError(
            f"--launcher=ray: no machine of the cluster has {resources.grid_cpus} cores, "
            f"{resources.grid_gpus} GPUs and {resources.grid_memory_gb or 0} GB of memory, "
            "expected one (--grid_cpus, --grid_gpus, --grid_memory_gb)"
        )
