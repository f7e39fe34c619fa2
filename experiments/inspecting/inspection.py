"""Numbers and warnings about a data set and its labels."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from appo_jax import reward_model, training
from appo_jax.data import checks, preferences
from appo_jax.data.dataset import Dataset, to_device
from appo_jax.data.preferences import Preferences
from appo_jax.envs import environment, origin
from appo_jax.types import InputError, LabelledPairs

_SATURATED = 0.99  # of the largest action of a column
_KINDS = 4  # of beginnings, at most: more are drawn, not of versions
_OFTEN = 0.05  # of all episodes
_QUANTILES = (0, 0.25, 0.5, 0.75, 1)


@dataclasses.dataclass(frozen=True)
class Folds:
    """How often reward models are right on labels that they weren't fitted to.

    accuracy, majority: shares of `count` labels that aren't ties: those that models of the other
    folds order as the label does, and those that the commoner answer of the other folds is.
    """

    accuracy: float
    majority: float
    count: int
    folds: int


def dataset_lines(dataset: Dataset) -> list[str]:
    """What can be counted, a line each."""
    rows = dataset.transition_rows()
    actions = np.abs(dataset.actions[rows])
    saturated = (actions >= _SATURATED * actions.max(axis=0)) & (actions > 0)
    constant = np.flatnonzero(dataset.observations[rows].std(axis=0) == 0).tolist()
    lines = [f"lengths       {_quantiles(dataset.lengths)}"]
    returns = dataset.returns()
    if returns is not None:
        lines.append(f"returns       {_quantiles(returns)}")
    shares = ", ".join(f"{100 * share:.1f}" for share in saturated.mean(axis=0))
    lines.append(f"saturation    {shares} % of the actions of each column are at its largest")
    lines.append(f"constant      {_listed(constant)} of {dataset.observation_dim} columns")
    sources = dataset.metadata.get("sources")
    for name, found in sources.items() if isinstance(sources, Mapping) else ():
        if isinstance(found, Mapping):
            numbers = ", ".join(f"{key} {_shown(value)}" for key, value in found.items())
            lines.append(f"source        {name}: {numbers}")
    return lines


def _quantiles(values: np.ndarray) -> str:
    numbers = ", ".join(f"{value:.4g}" for value in np.quantile(values, _QUANTILES))
    return f"{numbers} (least, quartiles, greatest)"


def _listed(columns: Sequence[int]) -> str:
    shown = ", ".join(map(str, columns[:20]))
    return f"{shown or 'none'}{', ...' if len(columns) > 20 else ''}"


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def dataset_warnings(dataset: Dataset, env_name: str | None) -> list[str]:
    """What is odd about it. env_name: the environment that it is for, if that is known."""
    found = []
    if env_name is None:
        found += checks.about_dataset(dataset)
    else:
        family = environment.family(env_name)
        found += origin.about(dataset, env_name)
        found += checks.about_dataset(
            dataset,
            family.goal,
            goal_is_fixed=env_name in family.fixed_goals,
            terminates=family.terminates,
            max_reward=family.max_reward,
        )
    return [*found, *_about_joins(dataset), *_about_beginnings(dataset)]


def _about_joins(dataset: Dataset) -> list[str]:
    """Last observations that are the next episode's first, as of an array that was shifted."""
    firsts = dataset.episode_starts[1:]
    same = np.all(dataset.observations[firsts - 1] == dataset.observations[firsts], axis=1)
    if not same.any():
        return []
    return [
        f"the last observation of {same.sum():,} of {dataset.num_episodes:,} episodes is the first "
        f"of the next one (the first is episode {int(same.argmax())}): next observations may have "
        "been taken across the ends of episodes"
    ]


def _about_beginnings(dataset: Dataset) -> list[str]:
    """Columns that begin with one of few values, as of several versions of an environment."""
    firsts = dataset.observations[dataset.episode_starts]
    for column, values in enumerate(firsts.T):
        kinds, counts = np.unique(values, return_counts=True)
        if 1 < len(kinds) <= _KINDS and counts.min() >= max(2, _OFTEN * len(values)):
            shown = ", ".join(
                f"{kind:g} in {count:,}" for kind, count in zip(kinds, counts, strict=True)
            )
            return [
                f"episodes begin with one of {len(kinds)} values of observation column {column} "
                f"({shown} of {len(values):,}); data of several versions of the environment may be "
                "mixed"
            ]
    return []


def truth_lines(dataset: Dataset, labels: Preferences) -> list[str]:
    """How often labels are as the true rewards say, where these are known."""
    if dataset.rewards is None:
        return []
    accuracy, count = preferences.accuracy(labels.labels, _returns(dataset, labels))
    share = "none to judge" if accuracy is None else f"{100 * accuracy:.1f} % of {count:,}"
    return [f"truth         {share} labels that aren't ties are as the true rewards say"]


def _returns(dataset: Dataset, labels: Preferences) -> np.ndarray:
    """True returns of the labelled segments, `[pairs, 2]`."""
    steps = np.arange(labels.length)
    lengths = labels.length if labels.lengths is None else labels.lengths[..., None]
    rows = labels.rows(dataset)[..., None] + np.minimum(steps, lengths - 1)
    rewards = dataset.known_rewards("the truth of labels")[rows]
    found: np.ndarray = np.where(steps < lengths, rewards, 0).sum(axis=-1, dtype=np.float64)
    return found


def cross_validate(dataset: Dataset, labels: Preferences, folds: int, seed: int = 0) -> Folds:
    """Fit reward models (the defaults) to all but one fold, and judge each on the fold left out.

    Raises InputError for fewer labels that aren't ties than folds.
    """
    strict = int(np.sum(labels.labels != 0.5))
    if strict < folds:
        raise InputError(
            f"--folds={folds}: {strict} labels aren't ties, expected at least one for each fold"
        )
    store, view = to_device(dataset, 1)
    order = np.random.default_rng(seed).permutation(len(labels))
    pairs = labels.to_device(dataset)
    config, correct, majority = reward_model.Config(), 0, 0
    for fold in range(folds):
        left_out = np.sort(order[fold::folds])
        rest = np.setdiff1d(order, left_out)
        fitted = _of(pairs, rest)
        key = jax.random.fold_in(jax.random.key(seed), fold)
        state, _ = training.fit(reward_model, config, key, store, view, fitted)
        rewards = np.asarray(_scores(config, state, store, _of(pairs, left_out)))
        answers = labels.labels[left_out]
        judged = answers != 0.5
        right = np.sign(rewards[:, 1] - rewards[:, 0]) == np.sign(answers - 0.5)
        correct += int(np.sum(right & judged))
        known = labels.labels[rest]
        commoner = 1.0 if np.sum(known > 0.5) > np.sum(known < 0.5) else -1.0
        majority += int(np.sum((np.sign(answers - 0.5) == commoner) & judged))
    return Folds(correct / strict, majority / strict, strict, folds)


def _of(pairs: LabelledPairs, chosen: np.ndarray) -> LabelledPairs:
    return jax.tree.map(lambda leaf: leaf[chosen], pairs)


def _scores(config: Any, state: Any, store: Any, pairs: LabelledPairs) -> jax.Array:
    inputs, is_step = reward_model.inputs_of(store, pairs)
    return reward_model.scores_of(config, state, inputs, is_step)
