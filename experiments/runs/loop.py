"""The one chunk loop, for reward models and for policies.

Order of writing, so that work can be stopped anywhere: metrics of a chunk, then the checkpoint,
then an evaluation's rows when they arrive. Going on takes the last checkpoint, drops the metrics
behind it, and evaluates again what has no row yet; a checkpoint is kept until its row is there.
"""

import dataclasses
import signal
import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import jax

from appo_jax import training
from experiments.runs import hosts, signals
from experiments.runs.checkpoints import Checkpoints, Clock
from experiments.runs.events import Advanced, Began, Ended, Paused, Report, Told
from experiments.runs.files import STOPPED, MetricsFile
from experiments.runs.groups import TrainingProgram


@dataclasses.dataclass(frozen=True)
class Work:
    """What one group of runs, or of reward models, does, settled before its first update.

    stage: what it is called. split: of its metrics' rows. owners: for each slot the runs whose
    metrics its are. names: of each slot, for messages. interval: updates between checkpoints, at
    which chunks begin anew. is_alone: there is no other slot, here or in another group.
    """

    stage: str
    split: str
    owners: tuple[tuple[int, ...], ...]
    names: tuple[str, ...]
    program: TrainingProgram
    keys: Any
    data: tuple[Any, ...]
    num_updates: int
    interval: int
    chunk_updates: int
    is_alone: bool

    def is_checkpoint(self, update: int) -> bool:
        """Whether the states of this update are saved (0: can be made anew), and evaluated."""
        return update % self.interval == 0 or update == self.num_updates


class Watcher(Protocol):
    """Who looks at the states while they are trained: the evaluations of policies."""

    def begin(self) -> None:
        """Do what an earlier start left undone."""

    def look(self) -> None:
        """A chunk is over."""

    def take(self, update: int, states: Any) -> None:
        """A checkpoint was saved."""

    def finish(self) -> None:
        """The last update is done: wait for what is under way."""

    def needs(self, update: int) -> bool:
        """Whether the checkpoint of this update can't be deleted yet."""


class Nobody:
    """A watcher of reward models, which are judged once they are fitted, and of another process's
    policies.
    """

    def begin(self) -> None:
        """There is nothing."""

    def look(self) -> None:
        """There is nothing."""

    def take(self, update: int, states: Any) -> None:
        """There is nothing."""

    def finish(self) -> None:
        """There is nothing."""

    def needs(self, update: int) -> bool:
        """None is."""
        return False


class Loop:
    """Trains a group of runs up to the last update."""

    def __init__(
        self,
        work: Work,
        states: Any,
        update: int,
        clock: Clock,
        checkpoints: Checkpoints,
        metrics: MetricsFile,
        report: Report,
        came: Sequence[signal.Signals],
        started: float,
    ):
        """came: holds the signal that asks to stop, once one has come. started: of the clock."""
        self._work, self._checkpoints, self._metrics = work, checkpoints, metrics
        self._report, self._came, self._started = report, came, started
        self.states, self.update, self.clock = states, update, clock
        self.divergences: list[str] = []  # a sentence for each slot that is no longer finite

    def run(self, watcher: Watcher) -> None:
        """Raises Stopped after a signal, when everything is on disk."""
        work = self._work
        self._report(Began(work.stage, self.update, work.num_updates, runs=len(work.owners)))
        try:
            watcher.begin()
            while self.update < work.num_updates:
                self._train_chunk()
                if not self.running():
                    break
                watcher.look()
                if work.is_checkpoint(self.update):
                    watcher.take(self.update, self._save(watcher))
                self.stop_if_asked(watcher)
            watcher.finish()
            self.stop_if_asked(watcher)
            self._tick()
        finally:
            self._report(Ended(work.stage))

    def running(self) -> list[int]:
        """The slots that train on from this update."""
        stops = [self._metrics.stopped_at(owners[0]) for owners in self._work.owners]
        return [slot for slot, at in enumerate(stops) if at is None or self.update < at]

    def stop_if_asked(self, watcher: Watcher) -> None:
        """Raise Stopped if a signal has come, with the states on disk."""
        came = hosts.signals_of_all(self._came)
        if came:
            self._save(watcher)
            raise signals.Stopped(came[0], f"update {self.update:,}")

    def _train_chunk(self) -> None:
        work = self._work
        to_checkpoint = work.interval - self.update % work.interval
        size = min(work.chunk_updates, to_checkpoint, work.num_updates - self.update)
        self._compile()
        running = self.running()
        began = time.perf_counter()
        self.states, metrics, broken = work.program.chunk(size, self.states, work.keys, work.data)
        self._wait_for_device(metrics)
        metrics, broken = hosts.slots_to_all((metrics, broken))
        self.clock.train_seconds += time.perf_counter() - began
        self.clock.timed_updates += size
        before, self.update = self.update, self.update + size
        found: dict[int, Mapping[str, float]] = {}
        for slot in running:
            values = {name: float(of_slots[slot]) for name, of_slots in metrics.items()}
            if broken[slot] >= 0:
                name = training.leaf_names(metrics, self.states)[broken[slot]]
                self._tell_of_divergence(slot, before, name, values.get(name))
                values[STOPPED] = before
            found |= dict.fromkeys(work.owners[slot], values)
        self._metrics.append(self.update, work.split, found)
        self._report(Advanced(work.stage, self.update, work.num_updates))

    def _compile(self) -> None:
        work, began = self._work, time.monotonic()
        if work.program.is_compiled:
            return
        if self.clock.timed_updates == 0:
            self._report(Told("compiling the update, once ..."))
        work.program.compile(self.states, work.keys, work.data)
        self._report(Paused(time.monotonic() - began))

    def _wait_for_device(self, arrays: Any) -> None:
        # Reading a value blocks the interpreter: Ctrl-C would go unanswered until the chunk's end.
        told = False
        while not all(array.is_ready() for array in jax.tree.leaves(arrays)):
            if self._came and not told:
                self._report(Told("stopping at the end of this chunk (Ctrl-C again: at once)"))
                told = True
            time.sleep(0.002)

    def _tell_of_divergence(self, slot: int, before: int, name: str, value: float | None) -> None:
        good = hosts.from_first(self._checkpoints.saved)
        text = (
            f"{self._work.names[slot]}: {name} is {'not finite' if value is None else value} in "
            f"updates {before + 1:,} to {self.update:,}, expected finite numbers; "
            f"{f'the last checkpoint is of update {good[-1]:,}' if good else 'no checkpoint yet'}"
        )
        self.divergences.append(text)
        if not self._work.is_alone:
            self._report(Told(f"{text}; it is stopped, the others go on"))

    def _save(self, watcher: Watcher) -> Any:
        """The states as they are saved: of all processes, in the first one."""
        self._tick()
        speed = {
            "clock/train_seconds": self.clock.train_seconds,
            "clock/timed_updates": float(self.clock.timed_updates),
            "clock/wall_seconds": self.clock.wall_seconds,
        }
        owners = [run for of_slot in self._work.owners for run in of_slot]
        if self._work.split == "train" and self.update not in self._metrics.values(
            owners[0], "clock", "clock/wall_seconds"
        ):
            self._metrics.append(self.update, "clock", dict.fromkeys(owners, speed))
        states = hosts.slots_to_first(self.states)
        if hosts.is_first():
            self._checkpoints.save(self.update, states, self.clock)
            self._checkpoints.prune(watcher.needs)
        return states

    def _tick(self) -> None:
        now = time.monotonic()
        self.clock.wall_seconds += now - self._started
        self._started = now
