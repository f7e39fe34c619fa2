"""How the runs of a grid are divided: groups that fit into memory, one program for all of them."""

import dataclasses
import os
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from appo_jax import training
from appo_jax.types import InputError, Store
from experiments.runs import hosts


@dataclasses.dataclass(frozen=True)
class Slots:
    """The places on the runs axis of a program: each holds a run, or a reward model, of its own.

    count: how many there are, for `num_runs` runs; the last run is repeated where there are more,
    since each device of `mesh` has as many. runs_axis: how they are worked off.
    """

    num_runs: int
    count: int
    runs_axis: training.RunsAxis
    mesh: Mesh | None

    @classmethod
    def of(cls, num_runs: int, runs_axis: training.RunsAxis, mesh: Mesh | None) -> "Slots":
        """Slots for so many runs."""
        devices = mesh.size if mesh else 1
        return cls(num_runs, -(-num_runs // devices) * devices, runs_axis, mesh)

    def fill(self, values: Sequence[Any]) -> Any:
        """Values of runs, stacked and put on their devices; the last one fills up."""
        filled = [*values, *[values[-1]] * (self.count - len(values))]
        return training.spread(self.mesh, training.stack_runs(filled))

    def chunk_updates(self, wanted: int | None) -> int:
        """Updates of a whole chunk: under `map` the slots take turns, and progress shall show.

        wanted: of one slot; None: some seconds on a busy CPU, and enough to keep a GPU at work.
        """
        wanted = wanted or (100 if jax.default_backend() == "cpu" else 500)
        # Of one process: metrics are means over chunks, and the number of processes changes none.
        devices = jax.local_device_count() if self.mesh else 1
        turns = -(-self.num_runs // devices) if self.runs_axis == "map" else 1
        return max(1, wanted // turns)


class TrainingProgram:
    """The chunks of one learner, compiled once and ahead: their time is that of their updates."""

    def __init__(self, learner: Any, config: Any, store: Store, slots: Slots):
        self._learner, self._config, self._store, self._slots = learner, config, store, slots
        self._compiled: Any = None

    @property
    def is_compiled(self) -> bool:
        """Whether `chunk` begins at once."""
        return self._compiled is not None

    def compile(self, states: Any, keys: Any, data: tuple[Any, ...]) -> None:
        """Do it for arrays like these, unless it is done."""
        if self._compiled is None:
            self._compiled = training.train_chunk.lower(
                self._learner,
                self._config,
                jnp.int32(1),
                states,
                keys,
                self._store,
                data,
                self._slots.runs_axis,
                self._slots.mesh,
            ).compile()

    def chunk(self, num_updates: int, states: Any, keys: Any, data: tuple[Any, ...]) -> Any:
        """What `train_chunk` returns."""
        self.compile(states, keys, data)
        return self._compiled(jnp.int32(num_updates), states, keys, self._store, data)

    def memory(self, states: Any, keys: Any, data: tuple[Any, ...]) -> int:
        """Bytes of a chunk's arrays."""
        self.compile(states, keys, data)
        return _memory(self._compiled)


def fitting_size(
    num_runs: int, memory_of: Callable[[int], int], tell: Callable[[str], None]
) -> int:
    """The runs of a group: all, or as many as fit, so that all groups are about equally large.

    memory_of: bytes that a program of so many runs needs.
    """
    size, limit = num_runs, min(hosts.of_all(_memory_limit()), key=lambda of_one: of_one or 0)
    while size > 1 and limit and (needed := memory_of(size)) > limit:
        # Each try is at least one run smaller.
        tried, fitting = size, max(1, min(size - 1, int(size * limit / needed)))
        size = -(-num_runs // -(-num_runs // fitting))
        tell(
            f"memory: {tried} runs together need {needed / 2**30:.1f} GiB of "
            f"{limit / 2**30:.1f} GiB; they train in groups of {size}"
        )
    return size


def settled_size(num_runs: int, wanted: int, before: int | None, folder: Any) -> int | None:
    """The runs of a group where that is decided already, by the user or by an earlier start."""
    if before and wanted and min(wanted, num_runs) != before:
        raise InputError(
            f"--runs_per_group={wanted}: {folder} was begun with {before}, expected the same"
        )
    return before or (min(wanted, num_runs) if wanted else None)


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
    return int(
        found.argument_size_in_bytes
        + found.output_size_in_bytes
        - found.alias_size_in_bytes
        + found.temp_size_in_bytes
    )
