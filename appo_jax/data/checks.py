"""What training asks of data and labels beyond their form, and what is odd about them.

Odd is what may be meant: it is told in sentences, for a command to print, and training goes on.
What can't be right is refused where data and labels are read (`dataset.from_episodes`,
`preferences.load`); `docs/input.md` lists all of it.
"""

import dataclasses
from typing import Any

import numpy as np

from appo_jax.data.dataset import STD_FLOOR, ActionScale, Dataset
from appo_jax.data.preferences import Preferences
from appo_jax.types import InputError

_SAME_LABEL = 1e-6  # float32 rounds 1 - 0.3 and 0.7 differently
_MANY_TIES = 0.75  # of all labels; the paper's tasks have about 0.3
_FEW_STEPS = 100  # of float32's numbers within a standard deviation


def check_episodes(dataset: Dataset, segment_length: int) -> None:
    """Raise InputError when fewer than two episodes are as long as a segment."""
    usable = int(np.sum(dataset.lengths >= segment_length))
    if usable < 2:
        raise InputError(
            f"data set {dataset.id}: {usable} of {dataset.num_episodes} episodes have at least the "
            f"segment length {segment_length} (the longest has {dataset.lengths.max()} steps), "
            "expected two or more to compare"
        )


def clip_actions(dataset: Dataset, scale: ActionScale | None = None) -> tuple[Dataset, list[str]]:
    """The data set with its actions, scaled to [-1, 1], inside of it, and what is odd about them.

    scale: from the environment's units, in which the sentences speak; left out, the same ones.
    """
    rows, ones = dataset.action_rows(), np.ones(dataset.action_dim)
    actions, scale = dataset.actions[rows], scale or ActionScale(0 * ones, ones)
    low, high = scale.to_raw(-ones), scale.to_raw(ones)
    outside = np.any(np.abs(actions) > 1, axis=1)
    if not outside.any():
        return dataset, _about_range(actions, scale, low, high)
    first = int(outside.argmax())
    row, column = rows[first], int(np.abs(actions[first]).argmax())
    episode = int(np.searchsorted(dataset.episode_starts, row, side="right")) - 1
    step = row - dataset.episode_starts[episode]
    worst = scale.to_raw(actions[first])[column]
    clipped = dataset.actions.copy()
    clipped[rows] = actions.clip(-1, 1)
    return dataclasses.replace(dataset, actions=clipped), [
        f"actions of {outside.sum():,} of {len(rows):,} transitions lie outside their bounds and "
        f"are clipped; the first is {worst:g}, expected {low[column]:g} to {high[column]:g}, in "
        f"column {column} of episode {episode}, step {step}"
    ]


def about_segments(dataset: Dataset, segment_length: int) -> list[str]:
    """How much of a data set no segment reaches: its episodes that are shorter than one."""
    short = dataset.lengths < segment_length
    if not short.any():
        return []
    return [
        f"{short.sum():,} of {dataset.num_episodes:,} episodes, with "
        f"{dataset.lengths[short].sum():,} of {dataset.num_transitions:,} transitions, are shorter "
        f"than a segment of {segment_length} steps: they are in no whole segment and no label; the "
        f"first is episode {int(short.argmax())} with {dataset.lengths[short][0]} steps"
    ]


def _about_range(
    actions: np.ndarray, scale: ActionScale, low: np.ndarray, high: np.ndarray
) -> list[str]:
    """Actions that leave half of the range free, as those of other units may."""
    least, most = actions.min(axis=0), actions.max(axis=0)
    column = int((most - least).argmax())
    if (most - least)[column] > 1:
        return []
    found = scale.to_raw(least)[column], scale.to_raw(most)[column]
    return [
        f"actions use at most half of their range in every column; the widest is column {column}, "
        f"from {found[0]:g} to {found[1]:g} of {low[column]:g} to {high[column]:g}; they may be in "
        "other units than the environment's"
    ]


def about_dataset(
    dataset: Dataset,
    goal: slice | None = None,
    goal_is_fixed: bool = False,
    terminates: bool = True,
    max_reward: float | None = None,
) -> list[str]:
    """What is odd about a data set.

    Of its environment: observation columns `goal` hold the task's goal, if any do; goal_is_fixed:
    the task has but one; terminates: whether a state can be terminal; max_reward: the most that a
    step gives.
    """
    warnings = []
    # The last rows: a goal can be in sight at a reset and hidden at every step.
    goals = dataset.observations[dataset.episode_starts + dataset.lengths, goal or slice(0)]
    if goal and np.all(goals == goals[0]) and not (goal_is_fixed and goals.any()):
        values = ", ".join(f"{value:g}" for value in goals[0])
        warnings.append(
            f"the goal is the same ({values}) in all {dataset.num_episodes:,} episodes "
            f"(observation columns {goal.start} to {goal.stop - 1}); "
            + ("it may be hidden" if not goals.any() else "a policy may fail at other goals")
        )
    if dataset.rewards is not None:
        warnings += _about_rewards(dataset.rewards[dataset.transition_rows()], max_reward)
    return warnings + _about_ends(dataset, terminates) + _about_columns(dataset)


def _about_rewards(rewards: np.ndarray, max_reward: float | None) -> list[str]:
    """True rewards that say little, or are of another scale. rewards: `[transitions]`."""
    warnings = []
    if np.all(rewards == rewards[0]):
        warnings.append(
            f"the true reward is {rewards[0]:g} in all {len(rewards):,} transitions; by it, every "
            "two segments tie"
        )
    if max_reward is not None and np.abs(rewards).max() > 2 * max_reward:
        warnings.append(
            f"a true reward is {rewards[np.abs(rewards).argmax()]:g}, where a step gives "
            f"{max_reward:g} at most: a tie threshold made for such rewards finds too few ties"
        )
    largest = np.float32(np.abs(rewards).max())
    exact = rewards.astype(np.float64)
    if _is_coarse(exact.std(), largest):
        warnings.append(
            f"the true rewards, {exact.mean():g} +- {exact.std():.3g}, lie so far from 0 that "
            f"float32, whose numbers are {np.spacing(largest):.3g} apart there, can't tell "
            "them apart"
        )
    return warnings


def _about_ends(dataset: Dataset, terminates: bool) -> list[str]:
    """Terminal states where there should be none: they change what the critics are fitted to."""
    ends = dataset.terminations[dataset.episode_starts + dataset.lengths - 1]
    longest = dataset.lengths == dataset.lengths.max()
    if not terminates and ends.any():
        return [
            f"{ends.sum():,} of {dataset.num_episodes:,} episodes end in a terminal state, where "
            f"the environment has none (the first is episode {int(ends.argmax())}): the value "
            "behind it counts as 0, as it doesn't behind a time limit"
        ]
    if ends[longest].all() and longest.sum() > 1:
        return [
            f"all {longest.sum():,} episodes of {dataset.lengths.max():,} steps, the most that "
            "there are, end in a terminal state; if that is a time limit, it is none: the value "
            "behind it counts as 0"
        ]
    return []


def about_unknown_ending(dataset: Dataset) -> list[str]:
    """What a learned reward in [0, 1] makes of terminal states while nobody said what they are."""
    ends = dataset.terminations[dataset.episode_starts + dataset.lengths - 1]
    if not ends.any():
        return []
    return [
        f"{ends.sum():,} of {dataset.num_episodes:,} episodes end in a terminal state, and nothing "
        "says what that is worth: learned rewards from 0 to 1 a step make every end a fall, which "
        "a policy puts off; --ending=goal (rewards below 0) says that it is the goal, "
        "--ending=fall that a fall is meant"
    ]


def _about_columns(dataset: Dataset) -> list[str]:
    """Numbers that lose what they say on the way to a network."""
    rows = dataset.transition_rows()
    means, stds = dataset.moments
    largest = np.array([np.abs(column[rows]).max() for column in dataset.observations.T])
    coarse = _is_coarse(stds, largest)
    warnings = []
    if coarse.any():
        first = int(coarse.argmax())
        warnings.append(
            f"{coarse.sum():,} of {len(stds):,} observation columns lie so far from 0 that "
            f"float32 can't tell their values apart; the first is column {first}, {means[first]:g} "
            f"+- {stds[first]:.3g}, where float32's numbers are "
            f"{np.spacing(largest[first]):.3g} apart"
        )
    after = stds / (stds + STD_FLOOR)
    small = (after < 0.1) & (stds > 0.01 * largest)  # and not near to constant as it is
    if dataset.is_normalised and small.any():
        first = int(small.argmax())
        warnings.append(
            f"{small.sum():,} of {len(stds):,} observation columns are so small that "
            f"normalising, which adds {STD_FLOOR:g} to each standard deviation, leaves them next "
            f"to constant; the first is column {first}, of standard deviation {stds[first]:.3g} "
            f"before and {after[first]:.3g} after"
        )
    return warnings


def _is_coarse(std: Any, largest: Any) -> Any:
    """Whether float32 has few numbers within a standard deviation that is worth anything."""
    spacing = np.spacing(largest)
    return (std < _FEW_STEPS * spacing) & (np.maximum(std, spacing) >= 10 * STD_FLOOR)


def about_labels(preferences: Preferences) -> list[str]:
    """What is odd about labels; pairs are counted from 0 in the order in which they are used."""
    warnings, total = _about_repeats(preferences), len(preferences)
    if preferences.num_left_out:
        warnings.append(
            f"{preferences.num_left_out:,} of {total + preferences.num_left_out:,} labelled pairs "
            "pair a segment with itself and are left out"
        )
    strict = preferences.labels[preferences.labels != 0.5]
    if not len(strict):
        warnings.append(f"all {total:,} labels are ties: there is nothing to learn from them")
    elif np.all(strict > 0.5) or np.all(strict < 0.5):
        which = "second" if strict[0] > 0.5 else "first"
        warnings.append(
            f"all {len(strict):,} labels that aren't ties prefer the {which} segment of their pair"
        )
    if len(strict) and preferences.num_ties >= _MANY_TIES * total:
        warnings.append(
            f"{preferences.num_ties:,} of {total:,} labels are ties, which leaves {len(strict):,} "
            "to learn from; the tie threshold may be too large for the rewards"
        )
    return warnings


def _about_repeats(preferences: Preferences) -> list[str]:
    """Pairs that were labelled before, in either order of their segments."""
    warnings = []
    again: list[tuple[int, int]] = []
    contradicting: list[tuple[int, int]] = []
    first_labels: dict[tuple[tuple[int, int, int], ...], tuple[int, float]] = {}
    lengths = preferences.lengths
    if lengths is None:
        lengths = np.full(preferences.starts.shape, preferences.length)
    for index, (episodes, starts, steps, label) in enumerate(
        zip(
            preferences.episodes.tolist(),
            preferences.starts.tolist(),
            lengths.tolist(),
            preferences.labels.tolist(),
            strict=True,
        )
    ):
        segments = tuple(zip(episodes, starts, steps, strict=True))
        if segments[0] > segments[1]:
            segments, label = segments[::-1], 1 - label
        before, first_label = first_labels.setdefault(segments, (index, label))
        if before != index:
            same = abs(label - first_label) <= _SAME_LABEL
            (again if same else contradicting).append((index, before))
    for places, what in (
        (again, "repeat an earlier one with the same label"),
        (contradicting, "contradict the label of an earlier one of the same segments"),
    ):
        if places:
            index, before = places[0]
            warnings.append(
                f"{len(places):,} of {len(preferences):,} labelled pairs {what}; the first is pair "
                f"{index} (episodes {preferences.episodes[index].tolist()}, steps "
                f"{preferences.starts[index].tolist()}) after pair {before}, counted from 0"
            )
    return warnings
