"""What runs need before they can learn anything: their config on disk, data sets, and labels."""

import dataclasses
import importlib.metadata
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from appo_jax.data import checks, lire, minari_io, preferences
from appo_jax.data.dataset import Dataset
from appo_jax.data.preferences import Preferences
from appo_jax.envs import environment
from appo_jax.types import InputError
from experiments import outputs
from experiments.collect import collect_and_save
from experiments.config import Experiment, Local, difference, digest

META_WORLD_DIMS = (39, 4)  # known without a simulator
META_WORLD_GOAL = slice(36, 39)  # columns of an observation
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
