"""A run from start to end: the one place that knows of resume, signals and overlapping evaluation.

Order of writing, so that a run can be stopped anywhere: metrics of a chunk, then the checkpoint,
then the evaluation's rows when they arrive. Resuming takes the last checkpoint, drops the metrics
behind it, and evaluates again what has no row yet; a checkpoint is kept until its row is there.
"""

import signal
import time
from collections.abc import Sequence
from concurrent.futures import Executor
from typing import Any

import jax
import numpy as np

from appo_jax import checkpoint, evaluation, policy, registry, training, workers
from appo_jax.data import dataset as datasets
from appo_jax.data.dataset import Dataset
from appo_jax.keys import Purpose, purpose_key
from appo_jax.types import InputError, Store, View
from experiments import outputs, prepare, signals, summary
from experiments.config import Experiment, Local, difference
from experiments.progress import Progress

KEPT_CHECKPOINTS = 3
LAST_ROW_OF_EVALUATION = "eval/return"  # with it, the evaluation is on disk whole
STOPPED = "train/stopped"  # the last good update of a run whose numbers are no longer finite


class Stopped(Exception):
    """A signal ended the run; its state is on disk."""

    def __init__(self, signal: signal.Signals, update: int):
        super().__init__(
            f"stopped by {signal.name} at update {update:,}; the same command goes on from there"
        )
        self.exit_code = 128 + signal


class Diverged(Exception):
    """No run is left whose numbers are finite; what was good is on disk."""


def run(experiment: Experiment, local: Local) -> dict[str, Any]:
    """Train, or go on training, and return the content of summary.json.

    Raises InputError for a folder that holds another run, Stopped after a signal, Diverged when
    the numbers of the last run that was left are no longer finite.
    """
    with outputs.locked(local.workdir):
        config = prepare.check_config(experiment, local)
        with signals.held():
            done = _finished(experiment, local)
        if done:
            return done
        started = time.time()
        dataset = prepare.obtain_dataset(experiment, local)
        prepare.check_dataset(dataset, config, local)
        labels = prepare.obtain_preferences(experiment, local, dataset)
        store, view = datasets.to_device(dataset, experiment.segment_length)
        metrics = outputs.MetricsFile(local.workdir / "metrics.csv")
        runs = [experiment]  # one for each row of the runs axis
        views = prepare.learn_rewards(runs, local, dataset, [labels], store, view, metrics)
        with workers.pool(local.num_workers) as pool:
            loop = _Loop(runs, local, dataset, store, views, metrics, pool, started)
            try:
                loop.train()
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        with signals.held():
            return summary.write(runs, local, dataset.id, metrics, loop.clock)


def _finished(experiment: Experiment, local: Local) -> dict[str, Any] | None:
    """The summary, if the run has nothing left to do."""
    saved = checkpoint.updates(local.workdir / "checkpoints" / "policy")
    written = outputs.read_json(local.workdir / "summary.json")
    done = saved[-1] if saved else 0
    if done > experiment.num_updates:
        raise InputError(
            f"--num_updates={experiment.num_updates}: {local.workdir} has {done} updates already, "
            "expected at least as many; nothing was changed"
        )
    if written and written["runs"][0]["num_updates"] == experiment.num_updates == done:
        print(f"this run is finished; its results lie in {local.workdir}")
        return written
    return None


class _Loop:
    """The training loop: chunks, checkpoints, and evaluations that run beside them."""

    def __init__(
        self,
        runs: Sequence[Experiment],
        local: Local,
        dataset: Dataset,
        store: Store,
        views: View,
        metrics: outputs.MetricsFile,
        pool: Executor,
        started: float,
    ):
        self._runs, self._local, self._metrics, self._pool = runs, local, metrics, pool
        self._experiment = runs[0]  # for what all rows share
        self._learner = registry.algorithm(self._experiment.algorithm).policy_learner
        self._normaliser = dataset.normaliser()
        self._store, self._views = store, views
        self._keys = training.stack_runs([purpose_key(run.seed, Purpose.BATCHES) for run in runs])
        self._folder = local.workdir / "checkpoints" / "policy"
        self._dims = (dataset.observation_dim, dataset.action_dim)
        self._dataset_digest = dataset.digest()
        self._programs: dict[int, Any] = {}
        self._pending: tuple[int, dict[int, evaluation.PendingEvaluation]] | None = None
        self._stop: signal.Signals | None = None
        self._started = started
        self.clock = {"train_seconds": 0.0, "timed_updates": 0, "wall_seconds": 0.0}
        self._states, self._update = self._restore_or_init()
        self._progress = Progress(self._update, self._experiment.num_updates)

    def train(self) -> None:
        """Train up to the last update and evaluate it. Raises Stopped after a signal."""
        handlers = {s: signal.signal(s, self._on_signal) for s in signals.STOPPING}
        try:
            self._show_latest()
            self._evaluate_missing()
            while self._update < self._experiment.num_updates:
                self._train_chunk()
                if not self._running(self._update):
                    self._collect_evaluation(wait=True)
                    raise Diverged(self._last_words)
                self._collect_evaluation(wait=False)
                if self._is_evaluated(self._update):
                    self._save()
                    self._collect_evaluation(wait=True)
                    self._stop_if_asked()
                    self._start_evaluation(self._update, self._states)
                self._stop_if_asked()
            self._collect_evaluation(wait=True)
            self._stop_if_asked()
            self._tick()
        finally:
            self._progress.close()
            for number, handler in handlers.items():
                signal.signal(number, handler)

    def _on_signal(self, number: int, _: Any) -> None:
        if self._stop:  # a second one doesn't wait for the chunk
            raise KeyboardInterrupt
        self._stop = signal.Signals(number)

    def _stop_if_asked(self) -> None:
        if self._stop:
            self._save()
            raise Stopped(self._stop, self._update)

    def _restore_or_init(self) -> tuple[Any, int]:
        init = jax.jit(self._learner.init, static_argnums=(0, 2, 3))  # one program, not dozens
        states = training.stack_runs(
            [
                init(
                    run.policy,
                    purpose_key(run.seed, Purpose.POLICY),
                    *self._dims,
                    lam=run.lam,
                    discount=run.discount,
                    tau=run.tau,
                )
                for run in self._runs
            ]
        )
        while saved := checkpoint.updates(self._folder):
            whole = self._evaluated()
            awaited = [u for u in saved if self._is_evaluated(u) and u not in whole]
            for update in dict.fromkeys([*awaited, saved[-1]]):
                try:
                    restored, metadata = self._restore(update, states)
                except checkpoint.Damaged as damage:
                    self._step_back([later for later in saved if later >= update], damage)
                    break
            else:
                return self._go_on(update, restored, metadata, whole)
        self._metrics.keep(lambda row: row["split"] == "reward")
        return states, 0

    def _restore(self, update: int, states: Any) -> tuple[Any, dict[str, Any]]:
        with signals.held():
            arrays, metadata = checkpoint.restore(self._folder, update, self._arrays(states))
        for index, (run, found) in enumerate(zip(self._runs, metadata["runs"], strict=True)):
            expected = run.identity()
            differs = difference({**found, "dataset": {"id": found["dataset"]["id"]}}, expected)
            if differs:
                raise InputError(
                    f"checkpoint {self._folder}/{update}: run {index} has {differs}; expected one "
                    "of the same run"
                )
        if metadata["dataset_digest"] != self._dataset_digest:
            raise InputError(
                f"checkpoint {self._folder}/{update}: trained on data with digest "
                f"{metadata['dataset_digest']}, expected {self._dataset_digest}"
            )
        return arrays["states"], metadata

    def _step_back(self, updates: Sequence[int], damage: checkpoint.Damaged) -> None:
        """Put a damaged checkpoint aside, and those that came after it."""
        print(damage)
        for update in updates:
            place = checkpoint.set_aside(self._folder, update)
            print(f"checkpoint of update {update:,} put aside: {place}")
        if not checkpoint.updates(self._folder):
            print("no earlier checkpoint is left: training starts anew")

    def _go_on(
        self, update: int, states: Any, metadata: dict[str, Any], whole: set[int]
    ) -> tuple[Any, int]:
        self.clock = metadata["clock"]
        # An evaluation of what was then the last update has no place in a longer run's curve.
        self._metrics.keep(
            lambda row: (
                row["update"] <= update
                and (
                    row["split"] != "eval"
                    or (row["update"] in whole and self._is_evaluated(row["update"]))
                )
            )
        )
        print(f"going on from update {update:,}")
        return states, update

    def _is_evaluated(self, update: int) -> bool:
        experiment = self._experiment
        return update % experiment.eval_interval == 0 or update == experiment.num_updates

    def _train_chunk(self) -> None:
        # Chunks begin anew at an evaluation, so that few sizes, each a program, occur.
        to_evaluation = (
            self._experiment.eval_interval - self._update % self._experiment.eval_interval
        )
        to_end = self._experiment.num_updates - self._update
        size = min(self._local.chunk_updates, to_evaluation, to_end)
        program = self._program(size)
        began = time.perf_counter()
        running = self._running(self._update)
        self._states, metrics, broken = program(self._states, self._keys, self._store, self._views)
        self._wait_for_device(metrics)
        metrics, broken = jax.device_get((metrics, broken))
        self.clock["train_seconds"] += time.perf_counter() - began
        self.clock["timed_updates"] += size
        self._update += size
        for run in running:
            row = {name: float(values[run]) for name, values in metrics.items()}
            self._metrics.append(run, self._update, "train", row)
            if broken[run] >= 0:
                name = training.leaf_names(metrics, self._states)[broken[run]]
                self._stop_run(run, self._update - size + 1, name, row.get(name))
        self._progress.advance(size)

    def _running(self, update: int) -> list[int]:
        """The runs that have come to this update."""
        stops = (self._metrics.values(run, "train", STOPPED) for run in range(len(self._runs)))
        return [
            run for run, stop in enumerate(stops) if update <= min(stop.values(), default=update)
        ]

    def _stop_run(self, run: int, first: int, name: str, value: float | None) -> None:
        """Note that a run's numbers are no longer finite since the update `first`."""
        self._metrics.append(run, self._update, "train", {STOPPED: first - 1})
        which = self._runs[run]
        good = checkpoint.updates(self._folder)
        self._last_words = (
            f"run {run} (seed {which.seed}, lambda {which.lam:g}): {name} is "
            f"{'not finite' if value is None else value} in updates {first:,} to "
            f"{self._update:,}, expected finite numbers; "
            f"{f'the last checkpoint is of update {good[-1]:,}' if good else 'no checkpoint yet'}"
        )
        if len(self._runs) > 1:
            self._progress.say(f"{self._last_words}; it is stopped, the others go on")

    def _wait_for_device(self, arrays: Any) -> None:
        # Reading a value blocks the interpreter: Ctrl-C would go unanswered until the chunk's end.
        told = False
        while not all(array.is_ready() for array in jax.tree.leaves(arrays)):
            if self._stop and not told:
                self._progress.say("stopping at the end of this chunk (Ctrl-C again: at once)")
                told = True
            time.sleep(0.002)

    def _program(self, num_updates: int) -> Any:
        # Compiled ahead, so that a chunk's time is the time of its updates.
        if num_updates not in self._programs:
            began = time.monotonic()
            if not self._programs:
                self._progress.say("compiling the update, once ...")
            self._programs[num_updates] = training.train_chunk.lower(
                self._learner,
                self._experiment.policy,
                num_updates,
                self._states,
                self._keys,
                self._store,
                self._views,
                training.default_batch_runs(),
            ).compile()
            self._progress.pause(time.monotonic() - began)
        return self._programs[num_updates]

    def _arrays(self, states: Any) -> dict[str, Any]:
        return policy.arrays(states, [self._normaliser] * len(self._runs))

    def _save(self) -> None:
        saved = checkpoint.updates(self._folder)
        if saved and saved[-1] == self._update:
            return
        self._tick()
        metadata = {
            "runs": [run.resolved() for run in self._runs],
            "dataset_digest": self._dataset_digest,
            "observation_dim": self._dims[0],
            "action_dim": self._dims[1],
            "clock": self.clock,
        }
        with signals.held():
            checkpoint.save(self._folder, self._update, self._arrays(self._states), metadata)
        evaluated = self._evaluated()
        for update in [*saved, self._update][:-KEPT_CHECKPOINTS]:
            if update in evaluated or not self._is_evaluated(update):
                checkpoint.delete(self._folder, update)

    def _tick(self) -> None:
        now = time.time()
        self.clock["wall_seconds"] += now - self._started
        self._started = now

    def _start_evaluation(self, update: int, states: Any) -> None:
        snapshots = jax.device_get(self._learner.snapshot(states))
        pending = {}
        for index in self._running(update):
            run = self._runs[index]
            state = jax.tree.map(lambda leaf, index=index: leaf[index], snapshots)
            trained = policy.Policy(run.algorithm, run.policy, state, self._normaliser)
            pending[index] = evaluation.start(
                self._pool, trained, run.task, run.seed, update, run.eval_episodes
            )
        self._pending = (update, pending)

    def _collect_evaluation(self, wait: bool) -> None:
        """Write down the evaluations under way if they are over; with `wait`, wait for that.

        Asked to stop, it doesn't wait.
        """
        if self._pending is None:
            return
        update, pending = self._pending
        began = time.monotonic()
        while wait and not self._stop and not all(one.done() for one in pending.values()):
            time.sleep(0.02)
        if not all(one.done() for one in pending.values()):
            return
        waited = time.monotonic() - began
        if waited > 1 and self._update < self._experiment.num_updates:
            self._progress.say(
                f"training waited {waited:.1f} s for the evaluation at update {update:,}"
            )
        for run, one in pending.items():
            self._metrics.append(run, update, "eval", one.result().metrics())
        self._pending = None
        self._progress.evaluated(update, self._success_rates()[update])

    def _evaluate_missing(self) -> None:
        """Evaluate again what was under way when the run was stopped."""
        evaluated = self._evaluated()
        for update in checkpoint.updates(self._folder):
            if self._is_evaluated(update) and update not in evaluated:
                with signals.held():
                    arrays, _ = checkpoint.restore(self._folder, update, self._arrays(self._states))
                self._collect_evaluation(wait=True)
                self._stop_if_asked()
                self._start_evaluation(update, arrays["states"])

    def _evaluated(self) -> set[int]:
        """The updates whose evaluation is on disk, for all runs that came to it."""
        found = [
            set(self._metrics.values(run, "eval", LAST_ROW_OF_EVALUATION))
            for run in range(len(self._runs))
        ]
        return {
            update
            for update in set.union(*found)
            if all(update in found[run] for run in self._running(update))
        }

    def _success_rates(self) -> dict[int, float]:
        """The mean over runs at each update."""
        rates: dict[int, list[float]] = {}
        for run in range(len(self._runs)):
            for update, rate in self._metrics.values(run, "eval", "eval/success_rate").items():
                rates.setdefault(update, []).append(rate)
        return {update: float(np.mean(rates[update])) for update in sorted(rates)}

    def _show_latest(self) -> None:
        rates = self._success_rates()
        if rates:
            self._progress.show(*list(rates.items())[-1])
