"""The rewards that policies train on: learned from labels, the true ones, or a control's."""

import dataclasses
import hashlib
import json
import signal
import time
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from appo_jax import registry, training
from appo_jax.data import preferences
from appo_jax.data.dataset import Dataset
from appo_jax.data.preferences import Preferences
from appo_jax.keys import Purpose, purpose_key
from appo_jax.types import Diverged, LabelledPairs, Store, View
from experiments.runs import reward_controls
from experiments.runs.checkpoints import Checkpoints, Clock
from experiments.runs.datasets import warn
from experiments.runs.events import Report, Told
from experiments.runs.experiment import Execution, Experiment, difference
from experiments.runs.folder import RunFolder
from experiments.runs.groups import Slots, TrainingProgram
from experiments.runs.labels import LabelKey, key_of
from experiments.runs.loop import Loop, Nobody, Work

NUM_FRESH_PAIRS = 1000  # drawn to judge a reward model
_CHUNK_UPDATES = 20  # at most: an update takes longer than a policy's
_CHECKPOINTS = 100  # of a whole fit
_LEAST_INTERVAL = 100  # updates between two of them


@dataclasses.dataclass(frozen=True)
class Feedback:
    """The labels of all runs, and what they point into."""

    runs: Sequence[Experiment]
    data: Mapping[str, Dataset]
    labels: Mapping[LabelKey, Preferences]
    pairs: Mapping[LabelKey, LabelledPairs]
    store: Store
    views: Mapping[str, View]

    def owners(self, key: LabelKey) -> tuple[int, ...]:
        """The runs that learn from these labels."""
        return tuple(number for number, run in enumerate(self.runs) if key_of(run) == key)


def rewards_of(
    feedback: Feedback,
    folder: RunFolder,
    execution: Execution,
    report: Report,
    came: Sequence[signal.Signals],
) -> dict[LabelKey, jax.Array]:
    """The rewards that runs with these labels train on, `[rows]` of their data set.

    The reward models are fitted now, those with equally many labels together, or were before; runs
    with the same labels share one. The accuracy that is reported is the fitted model's, also where
    `--reward` then puts other rewards in the place of its own. Where it asks for rewards that need
    no model, none is fitted. came: holds the signal that asks to stop. Raises Diverged where no
    model's numbers are finite.
    """
    run = feedback.runs[0]
    found: dict[LabelKey, jax.Array] = {}
    if reward_controls.needs_model(run.algorithm, run.reward):
        groups: dict[int, list[LabelKey]] = {}
        for key in feedback.labels:
            groups.setdefault(len(feedback.labels[key]), []).append(key)
        divergences: list[str] = []
        for keys in groups.values():
            fit = _Fit(feedback, keys, folder, execution, report)
            found |= fit.rewards(came)
            divergences += fit.divergences
        if divergences and all(
            folder.metrics.stopped_at(n) == 0 for n in range(len(feedback.runs))
        ):
            raise Diverged(divergences[-1])
    else:
        if run.reward != "none":
            report(Told(f"reward: {run.reward}, the labels are not used"))
        of_windows = registry.algorithm(run.algorithm).of_windows
        window = run.segment_length if of_windows else 1
        for key in feedback.labels:
            dataset = feedback.data[key.dataset]
            if reward_controls.needs_truth(run.algorithm, run.reward):
                found[key] = reward_controls.true_rewards(dataset, window)
            else:
                found[key] = jnp.zeros(len(dataset.observations))
    return {
        key: reward_controls.with_ending(
            run.ending,
            feedback.data[key.dataset],
            reward_controls.controlled(run.reward, key.seed, feedback.data[key.dataset], own),
        )
        for key, own in found.items()
    }


def into_store(
    runs: Sequence[Experiment],
    store: Store,
    views: Mapping[str, View],
    rewards: Mapping[LabelKey, jax.Array],
) -> tuple[Store, list[View]]:
    """The store with all rewards one after another, and each run's view of it."""
    places = dict(zip(rewards, np.cumsum([0, *map(len, rewards.values())]).tolist(), strict=False))
    return store.replace(rewards=jnp.concatenate(list(rewards.values()))), [
        views[run.dataset.id].replace(first_reward=jnp.int32(places[key_of(run)])) for run in runs
    ]


class _Fit:
    """Reward models of equally many labels: the number is part of the program."""

    def __init__(
        self,
        feedback: Feedback,
        keys: list[LabelKey],
        folder: RunFolder,
        execution: Execution,
        report: Report,
    ):
        self._feedback, self._keys, self._folder, self._report = feedback, keys, folder, report
        run = feedback.runs[0]
        learner = registry.algorithm(run.algorithm).reward_learner
        assert learner is not None
        self._learner, self._config = learner, run.reward_model
        self._num_labels = len(feedback.labels[keys[0]])
        self._num_updates = learner.num_updates(self._config, self._num_labels)
        runs_axis = training.choose_runs_axis(execution.runs_axis)
        self._slots = Slots.of(len(keys), runs_axis, mesh=None)
        self._chunk_updates = min(execution.chunk_updates or _CHUNK_UPDATES, _CHUNK_UPDATES)
        self.divergences: list[str] = []  # a sentence for each model that is no longer finite

    def rewards(self, came: Sequence[signal.Signals]) -> dict[LabelKey, jax.Array]:
        states = self._fitted(came)
        self._judge(states)
        return self._relabelled(states)

    def _fitted(self, came: Sequence[signal.Signals]) -> Any:
        started = time.monotonic()
        metrics, owners = self._folder.metrics, [self._feedback.owners(key) for key in self._keys]
        both = [jax.random.split(purpose_key(k.seed, Purpose.REWARD_MODEL)) for k in self._keys]
        fresh = [
            self._init(key, init_key) for key, (init_key, _) in zip(self._keys, both, strict=True)
        ]
        checkpoints = self._checkpoints(fresh)
        restored = checkpoints.latest(lambda saved: [], self._report)
        update = restored.update if restored else 0
        runs = {run for of_key in owners for run in of_key}
        metrics.keep(
            lambda row: (
                row["run"] not in runs or row["split"] != "reward" or row["update"] <= update
            )
        )
        clock = restored.clock if restored else Clock()
        states = self._slots.fill(restored.states if restored else fresh)
        if update == self._num_updates:
            return states
        interval = max(_LEAST_INTERVAL, -(-self._num_updates // _CHECKPOINTS))
        stage = f"reward model ({self._num_labels} labels{_times(len(self._keys))})"
        views = [self._feedback.views[key.dataset] for key in self._keys]
        work = Work(
            stage=stage,
            split="reward",
            owners=tuple(owners),
            names=tuple(map(self._name, self._keys)),
            program=TrainingProgram(self._learner, self._config, self._feedback.store, self._slots),
            keys=self._slots.fill([batch_key for _, batch_key in both]),
            data=(
                self._slots.fill(views),
                self._slots.fill([self._feedback.pairs[key] for key in self._keys]),
            ),
            num_updates=self._num_updates,
            interval=interval,
            chunk_updates=self._slots.chunk_updates(self._chunk_updates),
            is_alone=len(self._feedback.labels) == 1,
        )
        loop = Loop(work, states, update, clock, checkpoints, metrics, self._report, came, started)
        loop.run(Nobody())
        self.divergences = loop.divergences
        if loop.running():
            self._report(Told(f"{stage}: fitted in {loop.clock.wall_seconds:.0f} s"))
        return loop.states

    def _name(self, key: LabelKey) -> str:
        return f"reward model of {key.dataset}, seed {key.seed}, {key.num_labels} labels"

    def _init(self, key: LabelKey, init_key: jax.Array) -> Any:
        dataset = self._feedback.data[key.dataset]
        dims = dataset.observation_dim, dataset.action_dim
        init = jax.jit(self._learner.init, static_argnums=(0, 2, 3, 4))  # one program, not dozens
        return init(self._config, init_key, *dims, self._num_labels)

    def _checkpoints(self, fresh: Sequence[Any]) -> Checkpoints:
        metadata = {
            "config": dataclasses.asdict(self._config),
            "labels": [
                {**key._asdict(), "digest": _digest(self._feedback, key)} for key in self._keys
            ],
            "rows": self._slots.count,
        }
        expected = json.loads(json.dumps(metadata))
        shapes = jax.eval_shape(lambda: {"states": training.stack_runs(fresh)})
        return Checkpoints(
            folder=self._folder.reward_checkpoints(self._num_labels),
            template=lambda count: shapes,
            pack=lambda states: {"states": states},
            metadata=metadata,
            differs=lambda found: difference(
                {name: found.get(name) for name in expected}, expected
            ),
            num_runs=len(self._keys),
        )

    def _judge(self, states: Any) -> None:
        """Write down how often each model that is finite is right, unless it is on disk."""
        metrics = self._folder.metrics
        for slot, key in enumerate(self._keys):
            owners = self._feedback.owners(key)
            if all(metrics.values(run, "reward", "reward/fresh_pairs") for run in owners):
                continue
            if metrics.stopped_at(owners[0]) == 0:
                continue
            run, dataset = self._feedback.runs[owners[0]], self._feedback.data[key.dataset]
            name = self._name(key) if len(self._feedback.labels) > 1 else "reward model"
            if dataset.rewards is None:
                self._report(Told(f"{name}: not judged, there are no true rewards"))
                continue
            fresh = preferences.scripted(
                dataset,
                key.seed,
                NUM_FRESH_PAIRS,
                run.segment_length,
                run.tie_threshold,
                purpose=Purpose.FRESH_LABELS,
            )
            view = self._feedback.views[key.dataset]
            scores = training.score(
                self._learner,
                self._config,
                training.take_runs(states, slot),
                self._feedback.store,
                view,
                fresh.to_device(dataset, int(view.first_row)),
            )
            accuracy, count = preferences.accuracy(fresh.labels, np.asarray(scores))
            share = "no pair" if accuracy is None else f"{100 * accuracy:.1f} %"
            self._report(
                Told(
                    f"{name}: right on {share} of {count} fresh pairs ({fresh.num_ties} ties left "
                    "out)"
                )
            )
            if accuracy is not None and accuracy < 0.5:
                odd = (
                    f"by the true rewards it is right on {share} of {count} fresh pairs, where a "
                    "guess is on 50 %; the labels may mean the opposite of what they say (1: the "
                    "second segment is better)"
                )
                warn(self._name(key), [odd], self._report)
            found = {} if accuracy is None else {"reward/accuracy": accuracy}
            found["reward/fresh_ties"] = float(fresh.num_ties)
            found["reward/fresh_pairs"] = float(count)  # last: with it all of it is on disk
            metrics.append(self._num_updates, "reward", dict.fromkeys(owners, found))

    def _relabelled(self, states: Any) -> dict[LabelKey, jax.Array]:
        """r_hat of each model on the rows of its own data set."""
        found: dict[LabelKey, jax.Array] = {}
        for id, dataset in self._feedback.data.items():
            slots = [slot for slot, key in enumerate(self._keys) if key.dataset == id]
            if not slots:
                continue
            what = f"{dataset.num_transitions:,} transitions{_times(len(slots))}"
            self._report(Told(f"rewards of {what} ..."))  # transformers take minutes
            relabelled = training.relabel(
                self._learner,
                self._config,
                training.take_runs(states, np.array(slots)),
                self._feedback.store,
                training.stack_runs([self._feedback.views[id]] * len(slots)),
                len(dataset.observations),
                self._slots.runs_axis,
            )
            found |= {self._keys[slot]: own for slot, own in zip(slots, relabelled, strict=True)}
        return found


def _times(count: int) -> str:
    return f", {count} times" if count > 1 else ""


def _digest(feedback: Feedback, key: LabelKey) -> str:
    """Of what a model is fitted to: the labels, and the steps that they compare."""
    labels, dataset = feedback.labels[key], feedback.data[key.dataset]
    hasher = hashlib.sha256()
    steps = labels.rows(dataset)[..., None] + np.arange(labels.length)
    arrays = [labels.labels]
    if labels.lengths is not None:
        steps = np.minimum(steps, labels.rows(dataset)[..., None] + labels.lengths[..., None] - 1)
        arrays.append(labels.lengths)
    for array in (*arrays, dataset.observations[steps], dataset.actions[steps]):
        hasher.update(np.ascontiguousarray(array).tobytes())
    return hasher.hexdigest()
