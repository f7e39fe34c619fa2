"""The data sets of runs: obtained from their sources, fitted to the environment, checked."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence

import numpy as np

from appo_jax.data import checks
from appo_jax.data.dataset import Dataset
from appo_jax.envs import environment, origin
from appo_jax.envs.environment import Spaces
from appo_jax.types import InputError
from experiments.runs import hosts, reward_controls
from experiments.runs.events import Ended, Report, Told
from experiments.runs.experiment import Execution, Experiment
from experiments.runs.folder import RunFolder
from experiments.runs.sources import SOURCES


def obtain_all(
    runs: Sequence[Experiment], folder: RunFolder, execution: Execution, report: Report
) -> dict[str, Dataset]:
    """Every data set that a run trains on, by id; raises InputError for one that doesn't fit."""
    found: dict[str, Dataset] = {}
    for run in runs:
        if run.dataset.id not in found:
            dataset = hosts.first_before_others(functools.partial(obtain, run, execution, report))
            folder.check_dataset(dataset)
            report(Told(f"data: {_in_words(dataset)}"))
            found[run.dataset.id] = dataset
        else:
            _check_environment(found[run.dataset.id], run, execution)
    return found


def obtain(
    run: Experiment, execution: Execution, report: Report, spaces: Spaces | None = None
) -> Dataset:
    """The run's data set, read, or collected and saved now, with a line for all that is odd in it.

    Actions are scaled to [-1, 1], and what lies outside is clipped. spaces: the environment's,
    where it needn't be there to say them. Raises InputError if there is no data set, for data of
    another environment, or of other widths, and for too few episodes.
    """
    # First: a wrong name ends it before any work.
    spaces = environment.spaces(run.env_name) if spaces is None else spaces
    dataset = SOURCES[run.dataset.source].load(run.dataset, run.env_name, execution, report)
    report(Ended(f"{run.env_name} {run.dataset.recipe}"))
    _check_environment(dataset, run, execution)
    found = (dataset.observation_dim, dataset.action_dim)
    if found != (spaces.observation_dim, spaces.action_dim):
        raise InputError(
            f"--dataset={dataset.id}: {found[0]} numbers in an observation and {found[1]} in an "
            f"action, expected {run.env_name}'s {spaces.observation_dim} and {spaces.action_dim}"
        )
    _check_rewards(run, dataset, execution)
    rows = dataset.action_rows()
    actions = np.zeros_like(dataset.actions)
    actions[rows] = spaces.actions.to_unit(dataset.actions[rows])
    dataset = dataclasses.replace(
        dataset, actions=actions, is_normalised=run.normalise_observations
    )
    checks.check_episodes(dataset, run.segment_length)
    dataset, clipped = checks.clip_actions(dataset, spaces.actions)
    family = environment.family(run.env_name)
    odd = [
        *origin.about(dataset, run.env_name),
        *clipped,
        *checks.about_segments(dataset, run.segment_length),
        *checks.about_dataset(
            dataset,
            family.goal,
            goal_is_fixed=run.env_name in family.fixed_goals,
            terminates=family.terminates,
            max_reward=family.max_reward,
        ),
    ]
    if family.terminates and reward_controls.asks_for_ending(run):
        odd += checks.about_unknown_ending(dataset)
    warn(f"data set {dataset.id}", odd, report)
    return dataset


def _check_environment(dataset: Dataset, run: Experiment, execution: Execution) -> None:
    """Raise InputError where another environment than the run's made the data."""
    made_in = origin.environment_of(dataset)
    if (
        made_in is not None
        and origin.is_other(made_in, run.env_name)
        and not execution.allow_other_environment
    ):
        raise InputError(
            f"--dataset={dataset.id}: data of {made_in}, expected data of {run.env_name}; "
            "--allow_other_environment trains on them nevertheless"
        )


def _check_rewards(run: Experiment, dataset: Dataset, execution: Execution) -> None:
    """Raise InputError where a run needs the truth about rewards and nobody knows it."""
    if execution.preferences is None:
        dataset.known_rewards("a scripted teacher, or labels of your own in --preferences=<file>")
    if reward_controls.needs_truth(run.algorithm, run.reward):
        dataset.known_rewards(f"--reward={run.reward} with --algorithm={run.algorithm}")


def warn(name: str, warnings: Sequence[str], report: Report) -> None:
    """Tell of what is odd."""
    for warning in warnings:
        report(Told(f"warning: {name}: {warning}"))


def _in_words(dataset: Dataset) -> str:
    success, returns = dataset.success_rate(), dataset.returns()
    known = "rewards unknown"
    if success is not None:
        known = f"{100 * success:.0f} % of the episodes succeed"
    elif returns is not None:
        known = f"return {returns.mean():.1f} on average and {returns.max():.1f} at best"
    return f"{dataset.num_transitions:,} transitions in {dataset.num_episodes:,} episodes, {known}"


def origins(runs: Sequence[Experiment], execution: Execution) -> Mapping[str, str]:
    """Where each data set comes from, by id, for a person."""
    return {
        run.dataset.id: SOURCES[run.dataset.source].describe(run.dataset, execution) for run in runs
    }
