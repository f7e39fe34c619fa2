"""What a run needs before its policy can train: data set, labels, and the learned reward."""

import dataclasses
import importlib.metadata
import time
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from appo_jax import checkpoint, registry, training
from appo_jax.data import lire, minari_io, preferences
from appo_jax.data.dataset import Dataset
from appo_jax.data.preferences import Preferences
from appo_jax.keys import Purpose, purpose_key
from appo_jax.types import InputError, Store, View
from experiments import outputs, signals
from experiments.collect import collect_and_save
from experiments.config import Experiment, Local, difference

META_WORLD_DIMS = (39, 4)
NUM_FRESH_PAIRS = 1000  # drawn to judge the reward model
PACKAGES = ("appo-jax", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")


def check_config(experiment: Experiment, local: Local) -> dict[str, Any]:
    """Write config.json, or compare the run with the one that is there; returns its content."""
    path = local.workdir / "config.json"
    config = outputs.read_json(path)
    if config is not None:
        if not isinstance(config, dict) or "identity" not in config:
            raise InputError(
                f"--workdir={local.workdir}: its config.json is not from a run, expected a run's "
                "folder or an empty one"
            )
        differs = difference(config["identity"], experiment.identity())
        if differs:
            raise InputError(
                f"--workdir={local.workdir}: holds a run with {differs}; expected the same run or "
                "an empty folder"
            )
        config["num_updates"] = experiment.num_updates  # on disk once it is clear that it can grow
        return config
    config = {
        **experiment.resolved(),
        "identity": experiment.identity(),
        "digest": experiment.digest(),
        "versions": {name: importlib.metadata.version(name) for name in PACKAGES},
        "device": str(jax.devices()[0].device_kind),
    }
    outputs.write_json(path, config)
    return config


def obtain_dataset(experiment: Experiment, local: Local) -> Dataset:
    """The run's data set, read, or collected and saved now. Raises InputError if it can't be."""
    spec = experiment.dataset
    if spec.source == "lire":
        folder = lire.folder_of(local.data_dir, experiment.task)
        assert folder is not None
        assert spec.size is not None
        return lire.load(folder, spec.size)
    if spec.source == "collect":
        assert spec.size is not None
        return collect_and_save(
            experiment.task,
            spec.recipe,
            spec.size,
            spec.data_seed,
            str(local.data_dir),
            local.num_workers,
        )
    return minari_io.load(spec.id, local.data_dir)


def check_dataset(dataset: Dataset, config: dict[str, Any], local: Local) -> None:
    """Write the data set's identity into config.json, or compare it with what is there."""
    dims = (dataset.observation_dim, dataset.action_dim)
    if dims != META_WORLD_DIMS:
        raise InputError(
            f"--dataset={dataset.id}: {dims[0]} numbers in an observation and {dims[1]} in an "
            f"action, expected Meta-World's {META_WORLD_DIMS[0]} and {META_WORLD_DIMS[1]}"
        )
    found = {
        "id": dataset.id,
        "digest": dataset.digest(),
        "num_episodes": dataset.num_episodes,
        "num_transitions": dataset.num_transitions,
    }
    before = config.setdefault("dataset_contents", found)
    differs = difference(found, before)
    if differs:
        raise InputError(
            f"data set {dataset.id}: {differs} as when this run began; expected its contents to "
            "stay the same"
        )
    outputs.write_json(local.workdir / "config.json", config)
    success = dataset.success_rate()
    known = "" if success is None else f", {100 * success:.0f} % of the episodes succeed"
    print(
        f"data: {dataset.num_transitions:,} transitions in {dataset.num_episodes:,} episodes{known}"
    )


def obtain_preferences(experiment: Experiment, local: Local, dataset: Dataset) -> Preferences:
    """The run's labels, from its file or the scripted teacher; a copy goes to the run's folder."""
    if local.preferences:
        labels = preferences.load(local.preferences, dataset, experiment.segment_length)
        labels = labels.first(experiment.num_feedback)
    else:
        labels = preferences.scripted(
            dataset,
            experiment.seed,
            experiment.num_feedback,
            experiment.segment_length,
            experiment.tie_threshold,
            experiment.label_noise,
        )
    copy = local.workdir / "preferences.jsonl"
    # A person may keep the labels in the run's folder, under this very name.
    if not (local.preferences and copy.exists() and copy.samefile(local.preferences)):
        preferences.save(labels, copy)
    print(f"labels: {len(labels)} pairs, {labels.num_ties} of them ties")
    return labels


def learn_rewards(
    runs: Sequence[Experiment],
    local: Local,
    dataset: Dataset,
    labels: Sequence[Preferences],
    store: Store,
    view: View,
    metrics: outputs.MetricsFile,
) -> View:
    """The views `[runs]` with r_hat, from reward models that are fitted now or were before.

    The accuracy that is reported is the fitted model's, also where `--reward=shuffled` then
    permutes its rewards over the transitions.
    """
    learner = registry.algorithm(runs[0].algorithm).reward_learner
    config = runs[0].reward_model
    dims = (dataset.observation_dim, dataset.action_dim)
    states = training.stack_runs(
        [
            learner.init(config, purpose_key(run.seed, Purpose.REWARD_MODEL), *dims, len(own))
            for run, own in zip(runs, labels, strict=True)
        ]
    )
    views = training.stack_runs([view] * len(runs))
    batch_runs = training.default_batch_runs()
    folder = local.workdir / "checkpoints" / "reward"
    fitted = bool(checkpoint.updates(folder))
    if fitted:
        try:
            with signals.held():
                states = checkpoint.restore(folder, 0, states)[0]
        except checkpoint.Damaged as damage:
            print(f"{damage}; put aside ({checkpoint.set_aside(folder, 0)}), fitted again")
            fitted = False
    if not fitted:
        print(f"reward model: fitting it to {len(labels[0])} labels ...", flush=True)
        began = time.time()
        pairs = training.stack_runs([own.to_device(dataset) for own in labels])
        states, fit_metrics = training.fit_reward(learner, config, states, store, pairs, batch_runs)
        fit_metrics = jax.device_get(fit_metrics)
    views = training.relabel(learner, config, states, store, views, batch_runs)
    if not fitted:
        print(f"reward model: fitted in {time.time() - began:.0f} s")
        metrics.keep(lambda row: row["split"] != "reward")
        for index, run in enumerate(runs):
            row = {name: float(values[index]) for name, values in fit_metrics.items()}
            row |= _fresh_accuracy(run, dataset, np.asarray(views.rewards[index]))
            metrics.append(index, 0, "reward", row)
        with signals.held():
            checkpoint.save(folder, 0, states, {"config": dataclasses.asdict(config)})
    if runs[0].reward == "shuffled":
        rewards = [
            _shuffled(run, dataset, own) for run, own in zip(runs, views.rewards, strict=True)
        ]
        views = views.replace(rewards=jnp.stack(rewards))
    return views


def _fresh_accuracy(
    experiment: Experiment, dataset: Dataset, rewards: np.ndarray
) -> dict[str, float]:
    fresh = preferences.scripted(
        dataset,
        experiment.seed,
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


def _shuffled(experiment: Experiment, dataset: Dataset, rewards: jax.Array) -> jax.Array:
    """Rewards `[rows]`, permuted over the transitions: the control without a signal."""
    rows = jnp.asarray(dataset.transition_rows())
    key = purpose_key(experiment.seed, Purpose.SHUFFLED_REWARDS)
    return rewards.at[rows].set(rewards[jax.random.permutation(key, rows)])
