"""The evaluations of a group's policies, in worker processes, while the next updates are made."""

import signal
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from typing import Any

import jax
import numpy as np

from appo_jax import evaluation, training
from appo_jax.data.dataset import ActionScale, Normaliser
from appo_jax.policy import Policy
from appo_jax.trainable import snapshot
from experiments.runs.checkpoints import Checkpoints
from experiments.runs.events import Evaluated, Report, Told
from experiments.runs.experiment import Experiment
from experiments.runs.files import EVALUATED, MetricsFile
from experiments.runs.results import score_name


class Evaluations:
    """A watcher of `Loop`: evaluates what was there before the first update, and each checkpoint.

    One at a time.
    """

    def __init__(
        self,
        runs: Mapping[int, Experiment],
        names: Mapping[int, str],
        normalisers: Sequence[Normaliser],
        scales: Sequence[ActionScale],
        pool: Executor,
        checkpoints: Checkpoints,
        is_evaluated: Callable[[int], bool],
        initial: Callable[[], Any],
        metrics: MetricsFile,
        report: Report,
        came: Sequence[signal.Signals],
        written: Callable[[], object],
    ):
        """runs: by number, in the order of slots. names: of runs, for messages; none of the only
        one. is_evaluated: whether an update's policy is to be. initial: the states before the
        first update, or snapshots of them. came: holds the signal that asks to stop. written:
        called when an evaluation is on disk.
        """
        self._runs, self._names = runs, names
        self._normalisers, self._scales = normalisers, scales
        self._pool, self._checkpoints, self._is_evaluated = pool, checkpoints, is_evaluated
        self._initial = initial
        self._metrics, self._report, self._came, self._written = metrics, report, came, written
        self._pending: tuple[int, dict[int, evaluation.PendingEvaluation]] | None = None
        self._is_last = False
        self._warned: set[tuple[int, str]] = set()

    def begin(self) -> None:
        """Tell of the latest evaluation, and evaluate again what an earlier start left undone."""
        done = sorted(self.done())
        if done:
            self._tell(done[-1], again=True)
        if self.needs(0):
            self.take(0, self._initial())
        for update in self.missing(self._checkpoints.saved()):
            restored = self._checkpoints.restore(update)
            self.take(update, training.stack_runs(restored.states))

    def look(self) -> None:
        """Write down the evaluation under way, if it is over."""
        if self._pending is not None and self._is_over():
            self._write()

    def take(self, update: int, states: Any) -> None:
        """Evaluate the policies of these states, when the evaluation under way is over."""
        self._wait()
        if self._came:
            return  # the checkpoint is there; a later start evaluates it
        snapshots = jax.device_get(snapshot(states))
        pending = {}
        for slot, (number, run) in enumerate(self._runs.items()):
            if not self._came_to(number, update):
                continue
            policy = Policy(
                run.algorithm,
                run.policy,
                jax.tree.map(lambda leaf, slot=slot: leaf[slot], snapshots),
                self._normalisers[slot],
                self._scales[slot],
            )
            pending[number] = evaluation.start(
                self._pool,
                policy,
                run.env_name,
                run.seed,
                update,
                run.eval_episodes,
                run.eval_stop_at_success,
            )
        self._pending = (update, pending)

    def finish(self) -> None:
        """Wait for the last one."""
        self._is_last = True
        self._wait()

    def needs(self, update: int) -> bool:
        """Whether an evaluation of this checkpoint has no row yet."""
        return self._is_evaluated(update) and update not in self.done()

    def missing(self, saved: Sequence[int]) -> list[int]:
        """The checkpoints whose evaluation has no row yet."""
        return [update for update in saved if self.needs(update)]

    def done(self) -> set[int]:
        """The updates whose evaluation is on disk, for all runs that came to it."""
        found = {run: set(self._metrics.values(run, "eval", EVALUATED)) for run in self._runs}
        return {
            update
            for update in set.union(*found.values())
            if all(update in found[run] for run in self._runs if self._came_to(run, update))
        }

    def _came_to(self, run: int, update: int) -> bool:
        stopped = self._metrics.stopped_at(run)
        return stopped is None or update <= stopped

    def _is_over(self) -> bool:
        return self._pending is None or all(one.done() for one in self._pending[1].values())

    def _wait(self) -> None:
        """Wait for the evaluation under way, but not where a signal asks to stop."""
        began = time.monotonic()
        while not self._came and not self._is_over():
            time.sleep(0.02)
        waited = time.monotonic() - began
        if waited > 1 and self._pending is not None and not self._is_last:
            self._report(
                Told(
                    f"training waited {waited:.1f} s for the evaluation at update "
                    f"{self._pending[0]:,}"
                )
            )
        self.look()

    def _write(self) -> None:
        assert self._pending is not None
        update, pending = self._pending
        found = {run: one.result() for run, one in pending.items()}
        rows = {run: episodes.metrics() | {EVALUATED: 1.0} for run, episodes in found.items()}
        self._metrics.append(update, "eval", rows)
        self._pending = None
        self._written()
        self._tell(update)
        for run, episodes in found.items():
            self._warn(run, update, episodes)

    def _warn(self, run: int, update: int, episodes: evaluation.Episodes) -> None:
        """Tell what is odd: once, but of lost episodes each time, since there is no result."""
        of = f" of {self._names[run]}" if run in self._names else ""
        for warning in episodes.warnings():
            if episodes.num_lost or (run, warning) not in self._warned:
                self._report(Told(f"warning: evaluation{of} at update {update:,}: {warning}"))
            self._warned.add((run, warning))

    def _tell(self, update: int, again: bool = False) -> None:
        metric = score_name(self._metrics, self._runs)
        scores = [self._metrics.values(run, "eval", metric).get(update) for run in self._runs]
        known = [score for score in scores if score is not None]
        if known:
            self._report(Evaluated(update, metric, float(np.mean(known)), again))
