"""What a run needs before its policy can train: data set, labels, and the learned reward."""

import dataclasses
import importlib.metadata
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from appo_jax import checkpoint, registry, training
from appo_jax.data import checks, lire, minari_io, preferences
from appo_jax.data.dataset import Dataset
from appo_jax.data.preferences import Preferences
from appo_jax.envs import environment
from appo_jax.keys import Purpose, purpose_key
from appo_jax.types import InputError, Store, View
from experiments import controls, outputs, signals
from experiments.collect import collect_and_save
from experiments.config import Experiment, Local, difference, digest

META_WORLD_DIMS = (39, 4)  # known without a simulator
META_WORLD_GOAL = slice(36, 39)  # columns of an observation
NUM_FRESH_PAIRS = 1000  # drawn to judge the reward model
PACKAGES = ("appo-jax", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")


def check_config(runs: Sequence[Experiment], local: Local) -> dict[str, Any]:
    """Write config.json, or compare the runs with those that are there; returns its content."""
    path = local.workdir / "config.json"
    config = outputs.read_json(path)
    identities = json.loads(json.dumps([run.identity() for run in runs]))
    if config is not None:
        if not _is_config(config):
            raise InputError(
                f"--workdir={local.workdir}: its config.json is not from a run, expected a run's "
                "folder or an empty one"
            )
        _check_identities(config["identities"], identities, local)
        for run in config["runs"]:  # on disk once it is clear that the runs can grow
            run["num_updates"] = runs[0].num_updates
        return config
    config = {
        "runs": [run.resolved() for run in runs],
        "identities": identities,
        "digest": digest(runs),
        "versions": {name: importlib.metadata.version(name) for name in PACKAGES},
        "device": str(jax.devices()[0].device_kind),
    }
    outputs.write_json(path, config)
    return config


def _is_config(config: Any) -> bool:
    return (
        isinstance(config, dict)
        and isinstance(config.get("identities"), list)
        and isinstance(config.get("runs"), list)
        and all(isinstance(run, dict) for run in config["runs"])
        and isinstance(config.get("dataset_contents", {}), dict)
    )


def _check_identities(found: list[Any], expected: list[Any], local: Local) -> None:
    differs = f"{len(found)} runs, not {len(expected)}" if len(found) != len(expected) else None
    for one, other in zip(found, expected, strict=False):
        differs = differs or difference(one, other)
    if differs:
        raise InputError(
            f"--workdir={local.workdir}: holds a run with {differs}; expected the same run or "
            "an empty folder"
        )


def obtain_datasets(
    runs: Sequence[Experiment], config: dict[str, Any], local: Local
) -> dict[str, Dataset]:
    """Every data set that a run trains on, by id; raises InputError for one that doesn't fit."""
    found: dict[str, Dataset] = {}
    for run in runs:
        if run.dataset.id not in found:
            found[run.dataset.id] = obtain_dataset(run, local)
            check_dataset(found[run.dataset.id], config, local)
    return found


def obtain_dataset(experiment: Experiment, local: Local) -> Dataset:
    """The run's data set, read, or collected and saved now, with a line for all that is odd in it.

    Actions are scaled to [-1, 1], and what lies outside is clipped. Raises InputError if there is
    no data set, for data of other widths than the environment's, and for too few episodes.
    """
    dataset = _read_or_collect(experiment, local)
    goal = None
    if environment.is_meta_world(experiment.task):
        _check_dims(dataset, META_WORLD_DIMS, "Meta-World's")
        goal = META_WORLD_GOAL
    else:
        simulator = environment.Environment(experiment.task)
        dims = (simulator.observation_dim, simulator.action_dim)
        _check_dims(dataset, dims, f"{experiment.task}'s")
        rows = dataset.transition_rows()
        actions = np.zeros_like(dataset.actions)
        actions[rows] = simulator.actions.to_unit(dataset.actions[rows])
        dataset = dataclasses.replace(dataset, actions=actions)
    checks.check_episodes(dataset, experiment.segment_length)
    dataset, warnings = checks.clip_actions(dataset)
    _warn(f"data set {dataset.id}", warnings + checks.about_dataset(dataset, goal))
    return dataset


def _warn(name: str, warnings: Sequence[str]) -> None:
    for warning in warnings:
        print(f"warning: {name}: {warning}")


def _read_or_collect(experiment: Experiment, local: Local) -> Dataset:
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


def _check_dims(dataset: Dataset, expected: tuple[int, int], whose: str) -> None:
    found = (dataset.observation_dim, dataset.action_dim)
    if found != expected:
        raise InputError(
            f"--dataset={dataset.id}: {found[0]} numbers in an observation and {found[1]} in an "
            f"action, expected {whose} {expected[0]} and {expected[1]}"
        )


def check_dataset(dataset: Dataset, config: dict[str, Any], local: Local) -> None:
    """Write the data set's identity into config.json, or compare it with what is there."""
    found = {
        "id": dataset.id,
        "digest": dataset.digest(),
        "num_episodes": dataset.num_episodes,
        "num_transitions": dataset.num_transitions,
    }
    before = config.setdefault("dataset_contents", {}).setdefault(dataset.id, found)
    differs = difference(found, before)
    if differs:
        raise InputError(
            f"data set {dataset.id}: {differs} as when this run began; expected its contents to "
            "stay the same"
        )
    outputs.write_json(local.workdir / "config.json", config)
    success, returns = dataset.success_rate(), dataset.returns()
    known = f", {100 * (success or 0):.0f} % of the episodes succeed"
    if success is None:
        known = f", return {returns.mean():.1f} on average and {returns.max():.1f} at best"
    print(
        f"data: {dataset.num_transitions:,} transitions in {dataset.num_episodes:,} episodes{known}"
    )


class Labels(NamedTuple):
    """What decides the labels, and with them the reward model, of a run."""

    dataset: str
    seed: int
    num_labels: int


def labels_of(run: Experiment) -> Labels:
    """Runs that differ in lambda alone share them."""
    return Labels(run.dataset.id, run.seed, run.num_feedback)


def obtain_all_preferences(
    runs: Sequence[Experiment], local: Local, data: Mapping[str, Dataset]
) -> dict[Labels, Preferences]:
    """The labels of all runs; copies go to the folder."""
    found: dict[Labels, Preferences] = {}
    alone = len({labels_of(run) for run in runs}) == 1
    for run in runs:
        name = labels_of(run)
        if name not in found:
            copy = local.workdir / "preferences.jsonl"
            if not alone:
                file = f"{run.task}-seed{run.seed}-n{name.num_labels}.jsonl"
                copy = local.workdir / "preferences" / file
                copy.parent.mkdir(exist_ok=True)
            found[name] = obtain_preferences(run, local, data[run.dataset.id], copy)
    return found


def obtain_preferences(
    experiment: Experiment, local: Local, dataset: Dataset, copy: Path
) -> Preferences:
    """A run's labels, from its file or the scripted teacher; a copy is left.

    There is a line for all that is odd about them.
    """
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
    # A person may keep the labels in the run's folder, under this very name.
    if not (local.preferences and copy.exists() and copy.samefile(local.preferences)):
        preferences.save(labels, copy)
    print(f"labels: {len(labels)} pairs, {labels.num_ties} of them ties")
    source = local.preferences or f"of the scripted teacher, seed {experiment.seed}"
    _warn(f"labels {source}", checks.about_labels(labels))
    return labels


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
    groups: dict[int, list[Labels]] = {}  # the number of labels is part of the program
    for name in labels:
        groups.setdefault(name.num_labels, []).append(name)
    states = {count: _init_rewards(runs[0], data, names) for count, names in groups.items()}
    fit_metrics: dict[int, Any] = {}
    fitted = bool(checkpoint.updates(folder))
    if fitted:
        try:
            with signals.held():
                saved = checkpoint.restore(folder, 0, {str(n): states[n] for n in states})[0]
            states = {int(count): group for count, group in saved.items()}
        except checkpoint.Damaged as damage:
            print(f"{damage}; put aside ({checkpoint.set_aside(folder, 0)}), fitted again")
            fitted = False
    learner = registry.algorithm(runs[0].algorithm).reward_learner
    config, batch_runs = runs[0].reward_model, training.choose_batch_runs(local.batch_runs)
    if not fitted:
        for count, names in groups.items():
            many = f", {len(names)} times" if len(names) > 1 else ""
            print(f"reward model: fitting it to {count} labels{many} ...", flush=True)
            began = time.time()
            pairs = [
                labels[name].to_device(data[name.dataset], int(views[name.dataset].first_row))
                for name in names
            ]
            states[count], found = training.fit_reward(
                learner, config, states[count], store, training.stack_runs(pairs), batch_runs
            )
            fit_metrics[count] = jax.device_get(found)
            print(f"reward model: fitted in {time.time() - began:.0f} s")
    rewards: dict[Labels, jax.Array] = {}
    for count, names in groups.items():
        for dataset_id, dataset in data.items():
            rows = [row for row, name in enumerate(names) if name.dataset == dataset_id]
            if rows:
                relabelled = training.relabel(
                    learner,
                    config,
                    jax.tree.map(lambda leaf, rows=rows: leaf[np.array(rows)], states[count]),
                    store,
                    training.stack_runs([views[dataset_id]] * len(rows)),
                    len(dataset.observations),
                    batch_runs,
                )
                rewards |= {names[row]: own for row, own in zip(rows, relabelled, strict=True)}
    if not fitted:
        found = {}
        for name, own in rewards.items():
            place = groups[name.num_labels].index(name)
            found[name] = {k: float(v[place]) for k, v in fit_metrics[name.num_labels].items()}
            found[name] |= _fresh_accuracy(runs[0], name, data[name.dataset], np.asarray(own))
        metrics.keep(lambda row: row["split"] != "reward")
        metrics.append(0, "reward", {i: found[labels_of(run)] for i, run in enumerate(runs)})
        with signals.held():
            checkpoint.save(
                folder,
                0,
                {str(count): group for count, group in states.items()},
                {"config": dataclasses.asdict(config)},
            )
    return _with_rewards(runs, store, views, _controlled(kind, data, rewards))


def _controlled(
    kind: str, data: Mapping[str, Dataset], learned: Mapping[Labels, jax.Array]
) -> dict[Labels, jax.Array]:
    return {
        name: controls.rewards(kind, name.seed, data[name.dataset], own)
        for name, own in learned.items()
    }


def _init_rewards(run: Experiment, data: Mapping[str, Dataset], names: Sequence[Labels]) -> Any:
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
