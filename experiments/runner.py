"""A run from start to end: the one place that knows of resume, signals and overlapping evaluation.

Order of writing, so that a run can be stopped anywhere: metrics of a chunk, then the checkpoint,
then the evaluation's rows when they arrive. Resuming takes the last checkpoint, drops the metrics
behind it, and evaluates again what has no row yet; a checkpoint is kept until its row is there.
"""

import importlib.metadata
import signal
import time
from concurrent.futures import Executor
from typing import Any

import jax
import numpy as np
from tqdm import tqdm

from appo_jax import checkpoint, evaluation, registry, training, workers
from appo_jax.data import dataset as datasets
from appo_jax.data.dataset import Dataset
from appo_jax.keys import Purpose, purpose_key
from appo_jax.types import InputError, Store, View
from experiments import outputs, prepare, summary
from experiments.config import Experiment, Local, difference

KEPT_CHECKPOINTS = 3
PACKAGES = ("appo-jax", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")


class Stopped(Exception):
    """A signal ended the run; its state is on disk."""


def run(experiment: Experiment, local: Local) -> dict[str, Any]:
    """Train, or go on training, and return the content of summary.json.

    Raises InputError for a folder that holds another run, Stopped after a signal.
    """
    with outputs.locked(local.workdir):
        config = _check_config(experiment, local)
        done = _finished(experiment, local)
        if done:
            return done
        started = time.time()
        dataset = prepare.obtain_dataset(experiment, local)
        prepare.check_dataset(dataset, config, local)
        labels = prepare.obtain_preferences(experiment, local, dataset)
        store, view = datasets.to_device(dataset, experiment.segment_length)
        metrics = outputs.MetricsFile(local.workdir / "metrics.csv")
        views = prepare.learn_rewards(experiment, local, dataset, labels, store, view, metrics)
        with workers.pool(local.num_workers) as pool:
            loop = _Loop(experiment, local, dataset, store, views, metrics, pool, started)
            try:
                loop.train()
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        return summary.write(experiment, local, dataset.id, metrics, loop.clock)


def _check_config(experiment: Experiment, local: Local) -> dict[str, Any]:
    path = local.workdir / "config.json"
    found = outputs.read_json(path)
    if found is not None:
        differs = difference(found["identity"], experiment.identity())
        if differs:
            raise InputError(
                f"--workdir={local.workdir}: holds a run with {differs}; expected the same run or "
                "an empty folder"
            )
        return found
    config = {
        **experiment.resolved(),
        "identity": experiment.identity(),
        "digest": experiment.digest(),
        "versions": {name: importlib.metadata.version(name) for name in PACKAGES},
        "device": str(jax.devices()[0].device_kind),
    }
    outputs.write_json(path, config)
    return config


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
        experiment: Experiment,
        local: Local,
        dataset: Dataset,
        store: Store,
        views: View,
        metrics: outputs.MetricsFile,
        pool: Executor,
        started: float,
    ):
        self._experiment, self._local, self._metrics, self._pool = experiment, local, metrics, pool
        self._learner = registry.algorithm(experiment.algorithm).policy_learner
        self._normaliser = dataset.normaliser()
        self._store, self._views = store, views
        self._keys = prepare.add_runs_axis(purpose_key(experiment.seed, Purpose.BATCHES))
        self._folder = local.workdir / "checkpoints" / "policy"
        self._dims = (dataset.observation_dim, dataset.action_dim)
        self._dataset_digest = dataset.digest()
        self._programs: dict[int, Any] = {}
        self._pending: tuple[int, evaluation.PendingEvaluation] | None = None
        self._stop: signal.Signals | None = None
        self._started = started
        self.clock = {"train_seconds": 0.0, "timed_updates": 0, "wall_seconds": 0.0}
        self._states, self._update = self._restore_or_init()

    def train(self) -> None:
        """Train up to the last update and evaluate it. Raises Stopped after a signal."""
        handlers = {s: signal.signal(s, self._on_signal) for s in (signal.SIGINT, signal.SIGTERM)}
        try:
            with tqdm(
                total=self._experiment.num_updates,
                initial=self._update,
                unit="update",
                mininterval=1,
                dynamic_ncols=True,
            ) as self._bar:
                self._show_success()
                self._evaluate_missing()
                while self._update < self._experiment.num_updates:
                    self._train_chunk()
                    self._collect_evaluation(wait=False)
                    if self._is_evaluated(self._update):
                        self._collect_evaluation(wait=True)
                        self._save()
                        self._start_evaluation(self._update, self._states)
                    if self._stop:
                        self._save()
                        raise Stopped(
                            f"stopped by {self._stop.name} at update {self._update}; the same "
                            "command goes on from there"
                        )
                self._collect_evaluation(wait=True)
                self._tick()
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)

    def _on_signal(self, number: int, _: Any) -> None:
        if self._stop:  # a second one doesn't wait for the chunk
            raise KeyboardInterrupt
        self._stop = signal.Signals(number)

    def _restore_or_init(self) -> tuple[Any, int]:
        experiment = self._experiment
        key = purpose_key(experiment.seed, Purpose.POLICY)
        states = prepare.add_runs_axis(
            self._learner.init(
                experiment.policy,
                key,
                *self._dims,
                lam=experiment.lam,
                discount=experiment.discount,
                tau=experiment.tau,
            )
        )
        saved = checkpoint.updates(self._folder)
        if not saved:
            self._metrics.keep(lambda row: row["split"] == "reward")
            return states, 0
        update = saved[-1]
        arrays, metadata = checkpoint.restore(self._folder, update, self._arrays(states))
        self.clock = metadata["clock"]
        # An evaluation of what was then the last update has no place in a longer run's curve.
        self._metrics.keep(
            lambda row: (
                row["update"] <= update
                and (row["split"] != "eval" or self._is_evaluated(row["update"]))
            )
        )
        print(f"going on from update {update}")
        return arrays["states"], update

    def _is_evaluated(self, update: int) -> bool:
        experiment = self._experiment
        return update % experiment.eval_interval == 0 or update == experiment.num_updates

    def _train_chunk(self) -> None:
        boundaries = (self._local.chunk_updates, self._experiment.eval_interval)
        left = [size - self._update % size for size in boundaries]
        size = min(*left, self._experiment.num_updates - self._update)
        program = self._program(size)
        began = time.perf_counter()
        self._states, metrics = program(self._states, self._keys, self._store, self._views)
        metrics = {name: float(value[0]) for name, value in metrics.items()}  # the one host sync
        seconds = time.perf_counter() - began
        if not self.clock["timed_updates"]:
            left_seconds = seconds / size * (self._experiment.num_updates - self._update - size)
            tqdm.write(
                f"{size / seconds:.1f} updates a second: about {_duration(left_seconds)} for the "
                "rest"
            )
        self.clock["train_seconds"] += seconds
        self.clock["timed_updates"] += size
        self._update += size
        self._metrics.append(0, self._update, "train", metrics)
        self._bar.update(size)

    def _program(self, num_updates: int) -> Any:
        # Compiled ahead, so that a chunk's time is the time of its updates.
        if num_updates not in self._programs:
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
        return self._programs[num_updates]

    def _arrays(self, states: Any) -> dict[str, Any]:
        normaliser = {"mean": self._normaliser.mean, "std": self._normaliser.std}
        return {"states": states, "normaliser": normaliser}

    def _save(self) -> None:
        saved = checkpoint.updates(self._folder)
        if saved and saved[-1] == self._update:
            return
        self._tick()
        metadata = {
            "config": self._experiment.resolved(),
            "dataset_digest": self._dataset_digest,
            "observation_dim": self._dims[0],
            "action_dim": self._dims[1],
            "clock": self.clock,
        }
        checkpoint.save(self._folder, self._update, self._arrays(self._states), metadata)
        evaluated = self._metrics.values(0, "eval", "eval/success_rate")
        for update in [*saved, self._update][:-KEPT_CHECKPOINTS]:
            if update in evaluated or not self._is_evaluated(update):
                checkpoint.delete(self._folder, update)

    def _tick(self) -> None:
        now = time.time()
        self.clock["wall_seconds"] += now - self._started
        self._started = now

    def _start_evaluation(self, update: int, states: Any) -> None:
        experiment = self._experiment
        state = jax.tree.map(lambda leaf: np.asarray(leaf[0]), self._learner.snapshot(states))
        policy = evaluation.Policy(experiment.algorithm, experiment.policy, state, self._normaliser)
        pending = evaluation.start(
            self._pool,
            policy,
            experiment.task,
            experiment.seed,
            update,
            experiment.eval_episodes,
        )
        self._pending = (update, pending)

    def _collect_evaluation(self, wait: bool) -> None:
        """Write down the evaluation under way, if there is one and it is over or `wait` is set."""
        if self._pending is None or not (wait or self._pending[1].done()):
            return
        update, pending = self._pending
        began = time.perf_counter()
        episodes = pending.result()
        waited = time.perf_counter() - began
        if waited > 1 and self._update < self._experiment.num_updates:
            tqdm.write(f"training waited {waited:.1f} s for the evaluation at update {update}")
        self._metrics.append(0, update, "eval", episodes.metrics())
        self._pending = None
        self._show_success()

    def _evaluate_missing(self) -> None:
        """Evaluate again what was under way when the run was stopped."""
        evaluated = self._metrics.values(0, "eval", "eval/success_rate")
        for update in checkpoint.updates(self._folder):
            if self._is_evaluated(update) and update not in evaluated:
                arrays, _ = checkpoint.restore(self._folder, update, self._arrays(self._states))
                self._collect_evaluation(wait=True)
                self._start_evaluation(update, arrays["states"])

    def _show_success(self) -> None:
        rates = self._metrics.values(0, "eval", "eval/success_rate")
        if rates:
            update, rate = list(rates.items())[-1]
            self._bar.set_postfix_str(f"success {rate:.0f} % at {update}")


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
