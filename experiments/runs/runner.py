"""Runs from start to end: data, labels, rewards, and the policies, group by group."""

import functools
import json
import signal
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from typing import Any

import jax

from appo_jax import checkpoint, policy, registry, training, workers
from appo_jax.data import dataset as datasets_on_device
from appo_jax.data.dataset import Dataset, Normaliser
from appo_jax.envs import environment
from appo_jax.keys import Purpose, purpose_key
from appo_jax.trainable import snapshot
from appo_jax.types import Diverged, InputError, Store, View
from experiments.runs import curves, datasets, files, hosts, labels, results, rewards, signals
from experiments.runs.checkpoints import Checkpoints, Clock, Restored
from experiments.runs.evaluations import Evaluations
from experiments.runs.events import Report, Told, silent
from experiments.runs.experiment import (
    Execution,
    Experiment,
    completed,
    difference,
    differing,
    digest,
    label,
    named_settings,
)
from experiments.runs.folder import RunFolder
from experiments.runs.groups import Slots, TrainingProgram, fitting_size, settled_size
from experiments.runs.labels import key_of
from experiments.runs.loop import Loop, Nobody, Work
from experiments.runs.results import RunResult
from experiments.tracking.following import following


def run(
    runs: Sequence[Experiment], execution: Execution, report: Report = silent
) -> list[RunResult]:
    """Train, or go on training, and return the results that summary.json then holds.

    All runs share their algorithm and what shapes their program; they differ in task, labels, seed
    and swept numbers. Raises InputError for a folder that holds other runs, Stopped after a signal,
    Diverged when no run is left whose numbers are finite.
    """
    training.check_jax()
    hosts.check_same("the settings", _settings(runs, execution))
    checkpoint.check_place(execution.workdir)
    with hosts.own_folder(execution) as execution, files.locked(execution.workdir):
        folder = RunFolder(runs, execution)
        _refuse_fewer_updates(runs, folder)
        with following(execution.track, runs, folder.metrics, folder.path, report):
            done = results.of_folder(folder.path, folder.config, folder.metrics)
            if not hosts.from_first(lambda: _is_finished(done, folder)):
                return _carry_out(runs, folder, execution, report)
            done = hosts.from_first(lambda: _renew(runs, folder, done))
            report(Told(f"this run is finished; its results lie in {folder.path}"))
            return done


def _carry_out(
    runs: Sequence[Experiment], folder: RunFolder, execution: Execution, report: Report
) -> list[RunResult]:
    started = time.monotonic()
    data = datasets.obtain_all(runs, folder, execution, report)
    hosts.check_same("the data sets", [folder.dataset_digest(name) for name in data])
    folder.write()
    found_labels = labels.obtain_all(runs, execution, data, report)
    normalisers = {name: dataset.normaliser() for name, dataset in data.items()}
    store, views = _on_device(runs, data)
    pairs = {
        key: own.to_device(data[key.dataset], int(views[key.dataset].first_row))
        for key, own in found_labels.items()
    }
    feedback = rewards.Feedback(runs, data, found_labels, pairs, store, views)
    with signals.noted() as came:
        found = hosts.from_first(
            lambda: rewards.rewards_of(feedback, folder, execution, report, came)
        )
        store, own_views = rewards.into_store(runs, store, views, found)
        length = runs[0].segment_length
        if not any(labels.has_other_lengths(own, length) for own in found_labels.values()):
            # Else the policies of this algorithm don't read them.
            store, own_views = datasets_on_device.with_pairs(
                store, own_views, [pairs[key_of(run)] for run in runs]
            )
        with workers.pool(execution.num_workers) as pool:
            try:
                own_normalisers = [normalisers[run.dataset.id] for run in runs]
                _Policies(
                    runs, folder, execution, report, store, own_views, own_normalisers, pool
                ).train(came, started)
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
    with signals.held():
        return hosts.from_first(lambda: _write_results(runs, folder))


def _settings(runs: Sequence[Experiment], execution: Execution) -> Any:
    """What makes all processes do the same in the same order."""
    chunks = execution.chunk_updates, execution.runs_axis, execution.runs_per_group
    return digest(runs), runs[0].num_updates, chunks


def _refuse_fewer_updates(runs: Sequence[Experiment], folder: RunFolder) -> None:
    num_updates = runs[0].num_updates
    done = max(folder.metrics.last_update(run, "train") for run in range(len(runs)))
    if done > num_updates:
        raise InputError(
            f"--num_updates={num_updates}: {folder.path} has {done} updates already, expected at "
            "least as many; nothing was changed"
        )


def _is_finished(found: Sequence[RunResult], folder: RunFolder) -> bool:
    """Whether nothing is left to do; where all diverged, the last updates are tried again."""
    states, num_runs = {result.state for result in found}, len(found)
    if "finished" not in states or "unfinished" in states:
        return False
    groups = range(0, num_runs, folder.group_size() or num_runs)
    saved = [checkpoint.updates(folder.policy_checkpoints(first, num_runs)) for first in groups]
    return (folder.path / "summary.json").exists() and all(
        updates and updates[-1] == found[0].num_updates for updates in saved
    )


def _write_results(runs: Sequence[Experiment], folder: RunFolder) -> list[RunResult]:
    found = results.of_folder(folder.path, folder.config, folder.metrics)
    curves.plot(folder.path / "learning_curve.png", found)
    results.write_summary(folder.path / "summary.json", found)  # last: with it all is there
    return found


def _renew(runs: Sequence[Experiment], folder: RunFolder, done: list[RunResult]) -> list[RunResult]:
    if not results.is_summary(folder.path / "summary.json", done):
        _write_results(runs, folder)
    return done


def _on_device(
    runs: Sequence[Experiment], data: Mapping[str, Dataset]
) -> tuple[Store, dict[str, View]]:
    store, views = datasets_on_device.to_device_together(
        list(data.values()), runs[0].segment_length
    )
    return store, dict(zip(data, views, strict=True))


class _Policies:
    """The policies of all runs, trained group by group."""

    def __init__(
        self,
        runs: Sequence[Experiment],
        folder: RunFolder,
        execution: Execution,
        report: Report,
        store: Store,
        views: Sequence[View],
        normalisers: Sequence[Normaliser],
        pool: Executor,
    ):
        self._runs, self._folder, self._execution, self._report = runs, folder, execution, report
        self._views, self._normalisers, self._pool = views, normalisers, pool
        self._learner = registry.algorithm(runs[0].algorithm).policy_learner
        self._config = runs[0].policy
        self._mesh = training.runs_mesh()
        self._runs_axis = training.choose_runs_axis(execution.runs_axis)
        self._store = training.spread(self._mesh, store, shared=True)
        self._dims = (store.observations.shape[1], store.actions.shape[1])
        self._scales = [environment.spaces(run.env_name).actions for run in runs]
        self._keys = [purpose_key(run.seed, Purpose.BATCHES) for run in runs]
        self._compiled: tuple[Slots, TrainingProgram] | None = None
        all_settings = [named_settings(run.resolved()) for run in runs]
        names = differing(all_settings) or ["env_name", "seed"]
        self._names = [
            f"run {number} ({label(own, names)})" for number, own in enumerate(all_settings)
        ]

    def train(self, came: Sequence[signal.Signals], started: float) -> None:
        """Raises Stopped after a signal, Diverged when no run is left with finite numbers."""
        size = self._group_size()
        slots, program = self._program_of(size)
        divergences: list[str] = []
        for first in range(0, len(self._runs), size):
            group = range(first, min(first + size, len(self._runs)))
            if len(group) < len(self._runs):
                last = group.stop - 1
                which = f"runs {first} to {last}" if last > first else f"run {first}"
                self._report(Told(f"{which} of {len(self._runs)}"))
            divergences += self._train_group(group, slots, program, came, started)
            started = time.monotonic()
        stopped = [self._folder.metrics.stopped_at(run) for run in range(len(self._runs))]
        if divergences and None not in stopped:
            raise Diverged(divergences[-1])

    def _program_of(self, size: int) -> tuple[Slots, TrainingProgram]:
        """Of groups of so many runs; one whose memory was measured is compiled already."""
        slots = Slots.of(size, self._runs_axis, self._mesh)
        if self._compiled is None or self._compiled[0] != slots:
            program = TrainingProgram(self._learner, self._config, self._store, slots)
            self._compiled = slots, program
        return self._compiled

    def _group_size(self) -> int:
        wanted, before = self._execution.runs_per_group, hosts.from_first(self._folder.group_size)
        num_runs = len(self._runs)
        size = settled_size(num_runs, wanted, before, self._folder.path)
        if size is None:
            size = fitting_size(num_runs, self._memory, lambda text: self._report(Told(text)))
        if size != before:
            self._folder.settle_group_size(size)
        return size

    def _memory(self, size: int) -> int:
        """Bytes that a chunk of so many runs needs."""
        if size == 1:
            return 0  # there is no smaller group
        slots, program = self._program_of(size)
        states = slots.fill([self._init(self._runs[0])])
        return program.memory(states, slots.fill(self._keys[:1]), (slots.fill(self._views[:1]),))

    def _init(self, run: Experiment) -> Any:
        """The state of a run before its first update."""
        init = jax.jit(self._learner.init, static_argnums=(0, 2, 3))  # one program, not dozens
        swept = run.swept.on_device()
        return init(run.policy, purpose_key(run.seed, Purpose.POLICY), *self._dims, **vars(swept))

    def _initial(self, group: range) -> Any:
        """The policies of a group before its first update."""
        return training.stack_runs([snapshot(self._init(self._runs[number])) for number in group])

    def _train_group(
        self,
        group: range,
        slots: Slots,
        program: TrainingProgram,
        came: Sequence[signal.Signals],
        started: float,
    ) -> list[str]:
        """The sentences about runs whose numbers are no longer finite."""
        metrics = self._folder.metrics
        checkpoints = self._checkpoints(group, slots)
        work = self._work(group, slots, program)
        evaluations = Evaluations(
            {number: self._runs[number] for number in group},
            dict(enumerate(self._names)) if len(self._runs) > 1 else {},
            [self._normalisers[number] for number in group],
            [self._scales[number] for number in group],
            self._pool,
            checkpoints,
            work.is_checkpoint,
            functools.partial(self._initial, group),
            metrics,
            self._report,
            came,
            functools.partial(_write_results, self._runs, self._folder),
        )

        def found() -> tuple[Restored | None, list[files.Row]]:
            restored = checkpoints.latest(evaluations.missing, self._report)
            update = restored.update if restored else 0
            self._drop_rows_behind(update, group, evaluations.done(), work)
            return restored, metrics.rows

        restored, known = hosts.from_first(found)
        update = restored.update if restored else 0
        if not hosts.is_first():
            metrics.become(known)
        if restored:
            self._report(Told(f"going on from update {update:,}"))
            states, clock = slots.fill(restored.states), restored.clock
        else:
            states = slots.fill([self._init(self._runs[number]) for number in group])
            clock = Clock()
        loop = Loop(work, states, update, clock, checkpoints, metrics, self._report, came, started)
        if loop.running():
            loop.run(evaluations if hosts.is_first() else Nobody())
        return loop.divergences

    def _work(self, group: range, slots: Slots, program: TrainingProgram) -> Work:
        return Work(
            stage="training",
            split="train",
            owners=tuple((number,) for number in group),
            names=tuple(self._names[number] for number in group),
            program=program,
            keys=slots.fill([self._keys[number] for number in group]),
            data=(slots.fill([self._views[number] for number in group]),),
            num_updates=self._runs[0].num_updates,
            interval=self._runs[0].eval_interval,
            chunk_updates=slots.chunk_updates(self._execution.chunk_updates),
            is_alone=len(self._runs) == 1,
        )

    def _drop_rows_behind(self, update: int, group: range, done: set[int], work: Work) -> None:
        """Keep the metrics up to `update`.

        An evaluation of what was then the last update has no place in a longer run's curve.
        """

        def is_kept(row: files.Row) -> bool:
            if row["run"] not in group or row["split"] == "reward":
                return True
            if row["split"] == "eval" and not (
                row["update"] in done and work.is_checkpoint(row["update"])
            ):
                return False
            return row["update"] <= update

        self._folder.metrics.keep(is_kept)

    def _checkpoints(self, group: range, slots: Slots) -> Checkpoints:
        runs = [self._runs[number] for number in group]
        digests = [self._folder.dataset_digest(run.dataset.id) for run in runs]
        padding = slots.count - len(runs)
        numbers = [*group, *[group.stop - 1] * padding]
        normalisers = [self._normalisers[number] for number in numbers]
        scales = [self._scales[number] for number in numbers]
        metadata = {
            "runs": [run.resolved() for run in runs],
            "first_run": group.start,
            "rows": slots.count,
            "dataset_digests": digests,
            "observation_dim": self._dims[0],
            "action_dim": self._dims[1],
        }
        return Checkpoints(
            folder=self._folder.policy_checkpoints(group.start, len(self._runs)),
            template=functools.partial(
                policy.template, runs[0].algorithm, self._config, self._dims
            ),
            pack=lambda states: policy.arrays(states, normalisers, scales),
            metadata=metadata,
            differs=functools.partial(_differs, group, runs, digests),
            num_runs=len(runs),
        )


def _differs(
    group: range, runs: Sequence[Experiment], digests: Sequence[str], found: Mapping[str, Any]
) -> str | None:
    """In what a checkpoint's runs are other ones than these."""
    for number, run, own_digest, other, other_digest in zip(
        group, runs, digests, found["runs"], found["dataset_digests"], strict=True
    ):
        expected = json.loads(json.dumps(run.identity()))
        other = {**completed(other), "dataset": {"id": other["dataset"]["id"]}}
        if run.horizon() is None:
            other["policy"] = {k: v for k, v in other["policy"].items() if k != "num_updates"}
        differs = difference(other, expected)
        if other_digest != own_digest:
            differs = f"data of digest {other_digest}, not {own_digest}"
        if differs:
            return f"run {number} has {differs}"
    return None
