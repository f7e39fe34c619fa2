"""How the runs of a grid are divided: batches that fit into memory, one program for all of them."""

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

import jax

from appo_jax import registry, training
from appo_jax.data.dataset import Normaliser
from appo_jax.keys import Purpose, purpose_key
from appo_jax.types import InputError, Store, View
from experiments import outputs
from experiments.config import Experiment, Local


def folder(local: Local, first: int, size: int, num_runs: int) -> Path:
    """Where the batch of runs that begins with `first` keeps its checkpoints."""
    name = "policy" if size >= num_runs else f"policy-{first}"
    return local.workdir / "checkpoints" / name


class Job:
    """What all batches of runs share: data, programs, workers."""

    def __init__(
        self,
        runs: Sequence[Experiment],
        local: Local,
        config: dict[str, Any],
        normalisers: Mapping[str, Normaliser],
        store: Store,
        views: Sequence[View],
        metrics: outputs.MetricsFile,
        pool: Executor,
    ):
        self.runs, self.local, self._config = runs, local, config
        self.metrics, self.pool = metrics, pool
        self.learner = registry.algorithm(runs[0].algorithm).policy_learner
        self.mesh = training.runs_mesh()
        self.batch_runs = training.choose_batch_runs(local.batch_runs)
        self.store = training.spread(self.mesh, store, shared=True)
        self.views = views
        self.keys = [purpose_key(run.seed, Purpose.BATCHES) for run in runs]
        self.normalisers = [normalisers[run.dataset.id] for run in runs]
        self.digests = [config["dataset_contents"][run.dataset.id]["digest"] for run in runs]
        self.dims = (store.observations.shape[1], store.actions.shape[1])
        self.rows = 0  # of a batch, repeats included
        self._programs: dict[int, Any] = {}

    def batches(self) -> list[range]:
        """The runs of each batch: all at once, as many as `--runs_per_batch`, or as many as fit."""
        size = self._batch_size()
        self.rows = self._padded(size)
        self.folders = {
            first: folder(self.local, first, size, len(self.runs))
            for first in range(0, len(self.runs), size)
        }
        return [range(first, min(first + size, len(self.runs))) for first in self.folders]

    def _batch_size(self) -> int:
        num_runs, wanted = len(self.runs), self.local.runs_per_batch
        before = self._config.get("runs_per_batch")
        if before and wanted and wanted != before:
            raise InputError(
                f"--runs_per_batch={wanted}: {self.local.workdir} was begun with {before}, "
                "expected the same"
            )
        if before:
            return before
        size = min(wanted or num_runs, num_runs)
        limit = _memory_limit()
        while not wanted and size > 1 and limit:
            self.rows = self._padded(size)
            first = self.runs[0]
            longest = min(self.chunk_updates(), first.eval_interval, first.num_updates)
            needed = _memory(self.program(longest))
            if needed <= limit:
                break
            # Equal batches; each try is at least one run smaller.
            fitting = max(1, min(size - 1, int(size * limit / needed)))
            size = -(-num_runs // -(-num_runs // fitting))
            self._programs.clear()
            print(
                f"memory: {num_runs} runs together need {needed / 2**30:.1f} GiB of "
                f"{limit / 2**30:.1f} GiB; they train in batches of {size}"
            )
        self._config["runs_per_batch"] = size
        outputs.write_json(self.local.workdir / "config.json", self._config)
        return size

    def _padded(self, size: int) -> int:
        devices = self.mesh.size if self.mesh else 1
        return -(-size // devices) * devices

    def chunk_updates(self) -> int:
        """Updates of a whole chunk: under `map` the runs take turns, and progress shall show."""
        devices = self.mesh.size if self.mesh else 1
        turns = self.rows // devices if self.batch_runs == "map" else 1
        return max(1, self.local.chunk_updates // turns)

    def fill(self, values: Sequence[Any]) -> Any:
        """Values of the runs of a batch, stacked; repeats fill the last batch up."""
        rows = [*values, *[values[-1]] * (self.rows - len(values))]
        return training.spread(self.mesh, training.stack_runs(rows))

    def init_state(self, run: Experiment) -> Any:
        """The state of a run before its first update."""
        init = jax.jit(self.learner.init, static_argnums=(0, 2, 3))  # one program, not dozens
        key = purpose_key(run.seed, Purpose.POLICY)
        return init(run.policy, key, *self.dims, lam=run.lam, discount=run.discount, tau=run.tau)

    def program(self, num_updates: int) -> Any:
        """A chunk of this many updates, compiled ahead so that its time is that of its updates."""
        if num_updates not in self._programs:
            run = self.runs[0]
            states = self.fill([self.init_state(run)])
            self._programs[num_updates] = training.train_chunk.lower(
                self.learner,
                run.policy,
                num_updates,
                states,
                self.fill(self.keys[:1]),
                self.store,
                self.fill(self.views[:1]),
                self.batch_runs,
                self.mesh,
            ).compile()
        return self._programs[num_updates]

    def is_compiled(self, num_updates: int) -> bool:
        """Whether `program` answers at once."""
        return num_updates in self._programs


def _memory_limit() -> int | None:
    """Bytes that a program's arrays may take on a device."""
    stats = jax.local_devices()[0].memory_stats()
    if stats and "bytes_limit" in stats:
        return int(0.9 * stats["bytes_limit"])
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        # The devices of a CPU share its memory, with each other and with the data on the host.
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return int(0.5 * total / jax.local_device_count())
    return None


def _memory(program: Any) -> int:
    found = program.memory_analysis()
    return (
        found.argument_size_in_bytes
        + found.output_size_in_bytes
        - found.alias_size_in_bytes
        + found.temp_size_in_bytes
    )
