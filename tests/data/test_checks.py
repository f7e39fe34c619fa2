"""What is odd about data and labels, and what training needs of them."""

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest

from appo_jax.data import checks
from appo_jax.data.dataset import ActionScale, Dataset
from appo_jax.data.preferences import Preferences
from appo_jax.types import InputError

Make = Callable[..., Dataset]
GOAL = slice(0, 1)  # of the numbered sets, a column that changes with every row


@pytest.mark.parametrize("length", range(1, 10))
def test_two_episodes_must_be_as_long_as_a_segment(numbered: Make, length: int) -> None:
    dataset = numbered((3, 1, 7, 4))
    if length <= 4:
        checks.check_episodes(dataset, length)
        return
    usable = 1 if length <= 7 else 0
    with pytest.raises(
        InputError,
        match=rf"^data set tiny/numbered-v0: {usable} of 4 episodes have at least the segment "
        rf"length {length} \(the longest has 7 steps\), expected two or more",
    ):
        checks.check_episodes(dataset, length)


def test_actions_are_clipped_with_a_warning(numbered: Make) -> None:
    dataset = numbered((3, 2))
    actions = np.float32([[-1], [1], [0.5], [0], [-1.5], [7], [0]])
    dataset = dataclasses.replace(dataset, actions=actions.copy())
    clipped, warnings = checks.clip_actions(dataset)
    np.testing.assert_array_equal(clipped.actions[:, 0], [-1, 1, 0.5, 0, -1, 1, 0])
    assert warnings == [
        "actions of 2 of 5 transitions lie outside their bounds and are clipped; the first is "
        "-1.5, expected -1 to 1, in column 0 of episode 1, step 0"
    ]
    np.testing.assert_array_equal(dataset.actions, actions)  # the caller's own, untouched
    assert checks.clip_actions(clipped) == (clipped, [])
    barely = dataclasses.replace(dataset, actions=np.nextafter(actions.clip(-1, 1), 2))
    assert len(checks.clip_actions(barely)[1]) == 1
    (warning,) = checks.clip_actions(dataset, ActionScale(np.ones(1), np.full(1, 2.0)))[1]
    assert "the first is -2, expected -1 to 3, in column 0" in warning  # the environment's units


def test_actions_that_use_half_of_their_range(numbered: Make) -> None:
    actions = np.float32([[-0.5, 0.1], [0.5, 0.2], [0.3, 0.2], [9, 9]])
    dataset = dataclasses.replace(numbered((3,)), actions=actions)
    scale = ActionScale(np.float32([1, 0]), np.float32([2, 4]))
    assert checks.clip_actions(dataset, scale)[1] == [
        "actions use at most half of their range in every column; the widest is column 0, from 0 "
        "to 2 of -1 to 3; they may be in other units than the environment's"
    ]
    actions[0, 1] = -0.9
    assert checks.clip_actions(dataset, scale)[1] == []


def test_one_goal_only(numbered: Make) -> None:
    assert checks.about_dataset(numbered(), GOAL) == []
    observations = numbered().observations.copy()
    observations[:, 0] = 0.25
    frozen = dataclasses.replace(numbered(), observations=observations)
    assert checks.about_dataset(frozen, GOAL) == [
        "the goal is the same (0.25) in all 4 episodes (observation columns 0 to 0); a policy may "
        "fail at other goals"
    ]
    assert checks.about_dataset(frozen, GOAL, goal_is_fixed=True) == []
    # In sight at each reset, hidden at every step: what Meta-World does when asked wrongly.
    observations = numbered().observations.copy()
    observations[numbered().transition_rows() + 1, 0] = 0
    hidden = dataclasses.replace(numbered(), observations=observations)
    assert checks.about_dataset(hidden, GOAL) == [
        "the goal is the same (0) in all 4 episodes (observation columns 0 to 0); it may be hidden"
    ]
    assert len(checks.about_dataset(hidden, GOAL, goal_is_fixed=True)) == 1
    observations[-1, 0] = 1
    assert checks.about_dataset(hidden, GOAL) == []


def test_a_constant_reward(numbered: Make) -> None:
    dataset = numbered((3, 2))
    rewards = np.float32([2, 2, 2, 0, 2, 2, 0])  # zeros on the last rows, which no step starts at
    constant = dataclasses.replace(dataset, rewards=rewards)
    assert checks.about_dataset(constant, GOAL) == [
        "the true reward is 2 in all 5 transitions; by it, every two segments tie"
    ]
    rewards[5] = 3
    assert checks.about_dataset(constant, GOAL) == []


def labelled(*pairs: tuple[int, int, int, int, float]) -> Preferences:
    """Each: episode and start of the first segment, of the second, and the label."""
    columns = np.array(pairs)
    return Preferences(
        episodes=columns[:, [0, 2]].astype(int),
        starts=columns[:, [1, 3]].astype(int),
        labels=columns[:, 4].astype(np.float32),
        labellers=("me",) * len(pairs),
        length=2,
        dataset_id="tiny/numbered-v0",
        seed=None,
    )


def test_labels_without_a_flaw() -> None:
    # The segments of one pair are those of another, but no two pairs have both in common.
    fine = labelled((0, 0, 1, 3, 1), (0, 0, 1, 2, 0), (0, 3, 1, 0, 0.5), (1, 0, 0, 0, 0.3))
    assert checks.about_labels(fine) == []


def test_pairs_that_repeat_or_contradict_an_earlier_one() -> None:
    odd = labelled(
        (0, 5, 1, 3, 0.1),
        (2, 0, 1, 3, 1),
        (0, 5, 1, 3, 0.1),  # again
        (1, 3, 0, 5, 0.9),  # swapped, and so is the label, but for float32's rounding
        (1, 3, 0, 5, 0.1),  # swapped, but not the label
        (2, 0, 1, 3, 0),  # the other label
        (2, 0, 1, 3, 0.5),
    )
    assert checks.about_labels(odd) == [
        "2 of 7 labelled pairs repeat an earlier one with the same label; the first is pair 2 "
        "(episodes [0, 1], steps [5, 3]) after pair 0, counted from 0",
        "3 of 7 labelled pairs contradict the label of an earlier one of the same segments; the "
        "first is pair 4 (episodes [1, 0], steps [3, 5]) after pair 0, counted from 0",
    ]


@pytest.mark.parametrize(
    ("labels", "warning"),
    [
        ((0.5, 0.5), "all 2 labels are ties: there is nothing to learn from them"),
        ((1, 0.5, 0.6), "all 2 labels that aren't ties prefer the second segment of their pair"),
        ((0, 0.1), "all 2 labels that aren't ties prefer the first segment of their pair"),
        ((0.4, 0.6, 0.5), None),
    ],
)
def test_ties_and_one_sided_labels(labels: tuple[float, ...], warning: str | None) -> None:
    pairs = labelled(*((0, index, 1, 0, label) for index, label in enumerate(labels)))
    assert checks.about_labels(pairs) == ([warning] if warning else [])
