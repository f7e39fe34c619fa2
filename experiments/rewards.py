"""The rewards that policies train on: of models fitted to labels, or what stands for them."""

import dataclasses
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from appo_jax import checkpoint, registry, training
from appo_jax.data import preferences
from appo_jax.data.dataset import Dataset
from appo_jax.data.preferences import Preferences
from appo_jax.keys import Purpose, purpose_key
from appo_jax.types import LabelledPairs, Store, View
from experiments import controls, outputs, signals
from experiments.config import Experiment, Local
from experiments.prepare import Labels, labels_of

NUM_FRESH_PAIRS = 1000  # drawn to judge a reward model

# The number of labels is part of the program: models with as many are fitted together.
Groups = dict[int, list[Labels]]


def learn_rewards(
    runs: Sequence[Experiment],
    local: Local,
    data: Mapping[str, Dataset],
    labels: Mapping[Labels, Preferences],
    store: Store,
    views: Mapping[str, View],
    metrics: outputs.MetricsFile,
) -> tuple[Store, list[View]]:
    """The store with r_hat, and each run's view of it.

    The reward models are fitted now, together, or were before; runs with the same labels share one.
    The accuracy that is reported is the fitted model's, also where `--reward` then puts other
    rewards in the place of its own. Where it asks for rewards that need no model, none is fitted.
    """
    kind = runs[0].reward
    if kind in controls.UNLEARNED:
        print(f"reward: {kind}, the labels are not used")
        nothing = {name: jnp.zeros(len(data[name.dataset].observations)) for name in labels}
        return _with_rewards(runs, store, views, _controlled(kind, data, nothing))
    folder = local.workdir / "checkpoints" / "reward"
    batch_runs = training.choose_batch_runs(local.batch_runs)
    groups: Groups = {}
    for name in labels:
        groups.setdefault(name.num_labels, []).append(name)
    fresh = {count: _init(runs[0], data, names) for count, names in groups.items()}
    states = _restore(folder, fresh)
    if states:
        rewards = _relabel(runs[0], groups, data, states, store, views, batch_runs)
    else:
        pairs = {
            name: own.to_device(data[name.dataset], int(views[name.dataset].first_row))
            for name, own in labels.items()
        }
        states, fit_metrics = _fit(runs[0], groups, pairs, fresh, store, batch_runs)
        rewards = _relabel(runs[0], groups, data, states, store, views, batch_runs)
        for name, own in rewards.items():
            accuracy = _fresh_accuracy(runs[0], name, data[name.dataset], np.asarray(own))
            fit_metrics[name] |= accuracy
        metrics.keep(lambda row: row["split"] != "reward")
        metrics.append(0, "reward", {i: fit_metrics[labels_of(run)] for i, run in enumerate(runs)})
        config = {"config": dataclasses.asdict(runs[0].reward_model)}
        with signals.held():
            checkpoint.save(folder, 0, _by_text(states), config)
    return _with_rewards(runs, store, views, _controlled(kind, data, rewards))


def _restore(folder: Path, template: dict[int, Any]) -> dict[int, Any] | None:
    """The fitted models by their number of labels, None if they have to be fitted."""
    if not checkpoint.updates(folder):
        return None
    try:
        with signals.held():
            saved, _ = checkpoint.restore(folder, 0, _by_text(template))
    except checkpoint.Damaged as damage:
        print(f"{damage}; put aside ({checkpoint.set_aside(folder, 0)}), fitted again")
        return None
    return {int(count): group for count, group in saved.items()}


def _by_text(states: Mapping[int, Any]) -> dict[str, Any]:
    return {str(count): group for count, group in states.items()}  # Orbax knows text keys only


def _fit(
    run: Experiment,
    groups: Groups,
    pairs: Mapping[Labels, LabelledPairs],
    states: Mapping[int, Any],
    store: Store,
    batch_runs: training.BatchRuns,
) -> tuple[dict[int, Any], dict[Labels, dict[str, float]]]:
    """The fitted models by their number of labels, and each one's metrics."""
    learner = registry.algorithm(run.algorithm).reward_learner
    fitted: dict[int, Any] = {}
    metrics: dict[Labels, dict[str, float]] = {}
    for count, names in groups.items():
        many = f", {len(names)} times" if len(names) > 1 else ""
        print(f"reward model: fitting it to {count} labels{many} ...", flush=True)
        began = time.time()
        stacked = training.stack_runs([pairs[name] for name in names])
        fitted[count], found = training.fit_reward(
            learner, run.reward_model, states[count], store, stacked, batch_runs
        )
        found = jax.device_get(found)
        for row, name in enumerate(names):
            metrics[name] = {metric: float(values[row]) for metric, values in found.items()}
        print(f"reward model: fitted in {time.time() - began:.0f} s")
    return fitted, metrics


def _relabel(
    run: Experiment,
    groups: Groups,
    data: Mapping[str, Dataset],
    states: Mapping[int, Any],
    store: Store,
    views: Mapping[str, View],
    batch_runs: training.BatchRuns,
) -> dict[Labels, jax.Array]:
    """r_hat of each model on the rows of its own data set."""
    learner = registry.algorithm(run.algorithm).reward_learner
    rewards: dict[Labels, jax.Array] = {}
    for count, names in groups.items():
        for dataset_id, dataset in data.items():
            rows = [row for row, name in enumerate(names) if name.dataset == dataset_id]
            if not rows:
                continue
            relabelled = training.relabel(
                learner,
                run.reward_model,
                jax.tree.map(lambda leaf, rows=rows: leaf[np.array(rows)], states[count]),
                store,
                training.stack_runs([views[dataset_id]] * len(rows)),
                len(dataset.observations),
                batch_runs,
            )
            rewards |= {names[row]: own for row, own in zip(rows, relabelled, strict=True)}
    return rewards


def _controlled(
    kind: str, data: Mapping[str, Dataset], learned: Mapping[Labels, jax.Array]
) -> dict[Labels, jax.Array]:
    return {
        name: controls.rewards(kind, name.seed, data[name.dataset], own)
        for name, own in learned.items()
    }


def _init(run: Experiment, data: Mapping[str, Dataset], names: Sequence[Labels]) -> Any:
    learner = registry.algorithm(run.algorithm).reward_learner
    return training.stack_runs(
        [
            learner.init(
                run.reward_model,
                purpose_key(name.seed, Purpose.REWARD_MODEL),
                data[name.dataset].observation_dim,
                data[name.dataset].action_dim,
                name.num_labels,
            )
            for name in names
        ]
    )


def _with_rewards(
    runs: Sequence[Experiment],
    store: Store,
    views: Mapping[str, View],
    rewards: Mapping[Labels, jax.Array],
) -> tuple[Store, list[View]]:
    places = dict(zip(rewards, np.cumsum([0, *map(len, rewards.values())]).tolist(), strict=False))
    return store.replace(rewards=jnp.concatenate(list(rewards.values()))), [
        views[run.dataset.id].replace(first_reward=jnp.int32(places[labels_of(run)]))
        for run in runs
    ]


def _fresh_accuracy(
    experiment: Experiment, name: Labels, dataset: Dataset, rewards: np.ndarray
) -> dict[str, float]:
    fresh = preferences.scripted(
        dataset,
        name.seed,
        NUM_FRESH_PAIRS,
        experiment.segment_length,
        experiment.tie_threshold,
        purpose=Purpose.FRESH_LABELS,
    )
    accuracy, count = preferences.accuracy(fresh, dataset, rewards)
    print(
        f"reward model: right on {'no pair' if accuracy is None else f'{100 * accuracy:.1f} %'} of "
        f"{count} fresh pairs ({fresh.num_ties} ties left out)"
    )
    found = {"reward/fresh_pairs": float(count), "reward/fresh_ties": float(fresh.num_ties)}
    return found if accuracy is None else found | {"reward/accuracy": accuracy}
