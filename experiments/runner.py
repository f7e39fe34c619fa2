"""A run from start to end: the one place that knows of resume, signals and overlapping evaluation.

Order of writing, so that a run can be stopped anywhere: metrics of a chunk, then the checkpoint,
then the evaluation's rows when they arrive. Resuming takes the last checkpoint, drops the metrics
behind it, and evaluates again what has no row yet; a checkpoint is kept until its row is there.
"""

import json
import signal
import time
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from appo_jax import checkpoint, evaluation, policy, training, workers
from appo_jax.data import dataset as datasets
from appo_jax.types import InputError
from experiments import batches, outputs, prepare, rewards, signals, summary
from experiments.batches import Job
from experiments.config import Experiment, Local, difference
from experiments.progress import Progress

KEPT_CHECKPOINTS = 3
LAST_ROW_OF_EVALUATION = "eval/return"  # with it, the evaluation is on disk whole


class Diverged(Exception):
    """No run is left whose numbers are finite; what was good is on disk."""


def run(runs: Sequence[Experiment], local: Local) -> dict[str, Any]:
    """Train, or go on training, and return the content of summary.json.

    All runs differ in task, labels, lambda and seed alone. Raises InputError for a folder that
    holds other runs, Stopped after a signal, Diverged when no run is left with finite numbers.
    """
    with outputs.locked(local.workdir):
        config = prepare.check_config(runs, local)
        with signals.held():
            done = _finished(runs, config, local)
        if done:
            return done
        started = time.time()
        data = prepare.obtain_datasets(runs, config, local)
        labels = prepare.obtain_all_preferences(runs, local, data)
        normalisers = {name: dataset.normaliser() for name, dataset in data.items()}
        store, views = datasets.to_device_together(
            list(data.values()), runs[0].segment_length, list(normalisers.values())
        )
        metrics = outputs.MetricsFile(local.workdir / "metrics.csv")
        store, own_views = rewards.learn_rewards(
            runs, local, data, labels, store, dict(zip(data, views, strict=True)), metrics
        )
        clocks: list[dict[str, float]] = []
        words: list[str] = []  # of runs whose numbers are no longer finite
        with workers.pool(local.num_workers) as pool:
            job = Job(runs, local, config, normalisers, store, own_views, metrics, pool)
            try:
                for batch in job.batches():
                    loop = _Loop(job, batch, started)
                    loop.train()
                    clocks += [loop.clock] * len(batch)
                    words += loop.last_words
                    started = time.time()
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        if words and all(
            metrics.values(number, "train", outputs.STOPPED) for number in range(len(runs))
        ):
            raise Diverged(words[-1])
        with signals.held():
            return summary.write(runs, local, metrics, clocks)


def _finished(
    runs: Sequence[Experiment], config: Mapping[str, Any], local: Local
) -> dict[str, Any] | None:
    """The summary, if the runs have nothing left to do."""
    size = config.get("runs_per_batch", len(runs))
    saved = [
        checkpoint.updates(batches.folder(local, first, size, len(runs)))
        for first in range(0, len(runs), size)
    ]
    done = [updates[-1] if updates else 0 for updates in saved]
    num_updates = runs[0].num_updates
    if max(done) > num_updates:
        raise InputError(
            f"--num_updates={num_updates}: {local.workdir} has {max(done)} updates already, "
            "expected at least as many; nothing was changed"
        )
    written = summary.read(local.workdir / "summary.json", len(runs))
    if written and written["runs"][0]["num_updates"] == num_updates == min(done):
        print(f"this run is finished; its results lie in {local.workdir}")
        return written
    return None


class _Loop:
    """The training loop of a batch: chunks, checkpoints, and evaluations that run beside them."""

    def __init__(self, job: Job, batch: range, started: float):
        self._job, self._batch, self._started = job, batch, started
        self._runs = {number: job.runs[number] for number in batch}
        self._experiment = job.runs[0]  # for what all runs share
        self._metrics, self._local, self._pool = job.metrics, job.local, job.pool
        self._folder = job.folders[batch.start]
        self._keys = job.fill([job.keys[number] for number in batch])
        self._views = job.fill([job.views[number] for number in batch])
        self._pending: tuple[int, dict[int, evaluation.PendingEvaluation]] | None = None
        self._stop: list[signal.Signals] = []  # the signal that asks to stop, if one came
        self.clock = {"train_seconds": 0.0, "timed_updates": 0, "wall_seconds": 0.0}
        self.last_words: list[str] = []
        if len(batch) < len(job.runs):
            print(f"runs {batch.start} to {batch.stop - 1} of {len(job.runs)}")
        self._states, self._update = self._restore_or_init()
        self._progress = Progress(self._update, self._experiment.num_updates)

    def train(self) -> None:
        """Train up to the last update and evaluate it. Raises Stopped after a signal."""
        try:
            with signals.noted() as self._stop:
                self._show_latest()
                self._evaluate_missing()
                while self._update < self._experiment.num_updates:
                    self._train_chunk()
                    if not self._running(self._update):
                        break
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

    def _stop_if_asked(self) -> None:
        if self._stop:
            self._save()
            raise signals.Stopped(self._stop[0], f"update {self._update:,}")

    def _restore_or_init(self) -> tuple[Any, int]:
        while saved := checkpoint.updates(self._folder):
            whole = self._evaluated()
            awaited = [u for u in saved if self._is_evaluated(u) and u not in whole]
            for update in dict.fromkeys([*awaited, saved[-1]]):
                try:
                    restored, metadata = self._restore(update)
                except checkpoint.Damaged as damage:
                    self._step_back([later for later in saved if later >= update], damage)
                    break
            else:
                return self._go_on(update, restored, metadata, whole)
        self._metrics.keep(lambda row: row["run"] not in self._runs or row["split"] == "reward")
        return self._job.fill([self._job.init_state(run) for run in self._runs.values()]), 0

    def _restore(self, update: int) -> tuple[Any, dict[str, Any]]:
        name = f"checkpoint {self._folder}/{update}"
        with signals.held():
            metadata = checkpoint.read_metadata(self._folder, update)
            # The rows may be those of other devices.
            template = policy.template(
                self._experiment.algorithm,
                self._experiment.policy,
                self._job.dims,
                metadata["rows"],
            )
            arrays, _ = checkpoint.restore(self._folder, update, template)
        for number, found, digest in zip(
            self._batch, metadata["runs"], metadata["dataset_digests"], strict=True
        ):
            expected = json.loads(json.dumps(self._runs[number].identity()))
            differs = difference({**found, "dataset": {"id": found["dataset"]["id"]}}, expected)
            if digest != self._job.digests[number]:
                differs = f"data of digest {digest}, not {self._job.digests[number]}"
            if differs:
                raise InputError(
                    f"{name}: run {number} has {differs}; expected one of the same run"
                )
        states = [
            jax.tree.map(lambda leaf, row=row: leaf[row], arrays["states"])
            for row in range(len(self._batch))
        ]
        return self._job.fill(states), metadata

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
                row["run"] not in self._runs
                or (
                    row["update"] <= update
                    and (
                        row["split"] != "eval"
                        or (row["update"] in whole and self._is_evaluated(row["update"]))
                    )
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
        size = min(self._job.chunk_updates(), to_evaluation, to_end)
        program = self._program(size)
        began = time.perf_counter()
        running = self._running(self._update)
        self._states, metrics, broken = program(
            self._states, self._keys, self._job.store, self._views
        )
        self._wait_for_device(metrics)
        metrics, broken = jax.device_get((metrics, broken))
        self.clock["train_seconds"] += time.perf_counter() - began
        self.clock["timed_updates"] += size
        first, self._update = self._update + 1, self._update + size
        rows = {}
        for number in running:
            row = number - self._batch.start
            rows[number] = {name: float(values[row]) for name, values in metrics.items()}
            if broken[row] >= 0:
                name = training.leaf_names(metrics, self._states)[broken[row]]
                self._tell_of_divergence(number, first, name, rows[number].get(name))
                rows[number][outputs.STOPPED] = first - 1
        self._metrics.append(self._update, "train", rows)
        self._progress.advance(size)

    def _running(self, update: int) -> list[int]:
        """The runs that have come to this update."""
        stops = {
            number: self._metrics.values(number, "train", outputs.STOPPED) for number in self._batch
        }
        return [n for n, at in stops.items() if all(update <= last for last in at.values())]

    def _tell_of_divergence(self, number: int, first: int, name: str, value: float | None) -> None:
        run = self._runs[number]
        good = checkpoint.updates(self._folder)
        self.last_words.append(
            f"run {number} ({run.task}, seed {run.seed}, lambda {run.lam:g}): {name} is "
            f"{'not finite' if value is None else value} in updates {first:,} to "
            f"{self._update:,}, expected finite numbers; "
            f"{f'the last checkpoint is of update {good[-1]:,}' if good else 'no checkpoint yet'}"
        )
        if len(self._job.runs) > 1:
            self._progress.say(f"{self.last_words[-1]}; it is stopped, the others go on")

    def _wait_for_device(self, arrays: Any) -> None:
        # Reading a value blocks the interpreter: Ctrl-C would go unanswered until the chunk's end.
        told = False
        while not all(array.is_ready() for array in jax.tree.leaves(arrays)):
            if self._stop and not told:
                self._progress.say("stopping at the end of this chunk (Ctrl-C again: at once)")
                told = True
            time.sleep(0.002)

    def _program(self, num_updates: int) -> Any:
        if not self._job.is_compiled(num_updates):
            began = time.monotonic()
            if self.clock["timed_updates"] == 0:
                self._progress.say("compiling the update, once ...")
            self._job.program(num_updates)
            self._progress.pause(time.monotonic() - began)
        return self._job.program(num_updates)

    def _arrays(self, states: Any) -> dict[str, Any]:
        own = [self._job.normalisers[number] for number in self._batch]
        return policy.arrays(states, own + own[-1:] * (self._job.rows - len(own)))

    def _save(self) -> None:
        saved = checkpoint.updates(self._folder)
        if saved and saved[-1] == self._update:
            return
        self._tick()
        metadata = {
            "runs": [run.resolved() for run in self._runs.values()],
            "first_run": self._batch.start,
            "rows": self._job.rows,
            "dataset_digests": [self._job.digests[number] for number in self._batch],
            "observation_dim": self._job.dims[0],
            "action_dim": self._job.dims[1],
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
        snapshots = jax.device_get(self._job.learner.snapshot(states))
        pending = {}
        for number in self._running(update):
            run, row = self._runs[number], number - self._batch.start
            state = jax.tree.map(lambda leaf, row=row: leaf[row], snapshots)
            trained = policy.Policy(run.algorithm, run.policy, state, self._job.normalisers[number])
            pending[number] = evaluation.start(
                self._pool,
                trained,
                run.task,
                run.seed,
                update,
                run.eval_episodes,
                run.eval_stop_at_success,
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
        outcomes = {number: one.result().metrics() for number, one in pending.items()}
        self._metrics.append(update, "eval", outcomes)
        self._pending = None
        metric, scores = self._scores()
        self._progress.evaluated(update, metric, scores[update])

    def _evaluate_missing(self) -> None:
        """Evaluate again what was under way when the run was stopped."""
        evaluated = self._evaluated()
        for update in checkpoint.updates(self._folder):
            if self._is_evaluated(update) and update not in evaluated:
                states, _ = self._restore(update)
                self._collect_evaluation(wait=True)
                self._stop_if_asked()
                self._start_evaluation(update, states)

    def _evaluated(self) -> set[int]:
        """The updates whose evaluation is on disk, for all runs that came to it."""
        found = {
            number: set(self._metrics.values(number, "eval", LAST_ROW_OF_EVALUATION))
            for number in self._batch
        }
        return {
            update
            for update in set.union(*found.values())
            if all(update in found[number] for number in self._running(update))
        }

    def _scores(self) -> tuple[str, dict[int, float]]:
        """What the runs are judged by, and its mean over runs at each update."""
        metric, found = "eval/success_rate", dict[int, list[float]]()
        for number in self._batch:
            name, scores = self._metrics.scores(number)
            for update, score in scores.items():
                metric = name
                found.setdefault(update, []).append(score)
        return metric, {update: float(np.mean(found[update])) for update in sorted(found)}

    def _show_latest(self) -> None:
        metric, scores = self._scores()
        if scores:
            update, score = list(scores.items())[-1]
            self._progress.show(update, metric, score)
