"""What is odd about data and labels, and what training needs of them."""

import dataclasses
import re
from collections.abc import Callable

import numpy as np
import pytest

from appo_jax.data import checks
from appo_jax.data.dataset import ActionScale, Dataset, Episode, from_episodes
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


def test_episodes_shorter_than_a_segment_are_told(numbered: Make) -> None:
    dataset = numbered((3, 1, 7, 4))
    assert checks.about_segments(dataset, 1) == []
    assert checks.about_segments(dataset, 4) == [
        "2 of 4 episodes, with 4 of 15 transitions, are shorter than a segment of 4 steps: they "
        "are in no whole segment and no label; the first is episode 0 with 3 steps"
    ]


def with_ends(dataset: Dataset, ends: tuple[bool, ...]) -> Dataset:
    terminations = np.zeros(len(dataset.rewards), bool)
    terminations[dataset.episode_starts + dataset.lengths - 1] = ends
    return dataclasses.replace(dataset, terminations=terminations)


def test_terminal_states_where_there_are_none(numbered: Make) -> None:
    dataset = with_ends(numbered((3, 1, 7)), (False, True, True))
    assert checks.about_dataset(dataset) == []
    assert checks.about_dataset(dataset, terminates=False) == [
        "2 of 3 episodes end in a terminal state, where the environment has none (the first is "
        "episode 1): the value behind it counts as 0, as it doesn't behind a time limit"
    ]
    nowhere = with_ends(dataset, (False, False, False))
    assert checks.about_dataset(nowhere, terminates=False) == []


def test_terminal_states_at_what_may_be_a_time_limit(numbered: Make) -> None:
    dataset = numbered((5, 2, 5, 5, 4))
    (told,) = checks.about_dataset(with_ends(dataset, (True, False, True, True, True)))
    assert told == (
        "all 3 episodes of 5 steps, the most that there are, end in a terminal state; if that is a "
        "time limit, it is none: the value behind it counts as 0"
    )
    for ends in ((True, False, True, False, True), (False, True, False, False, True)):
        assert checks.about_dataset(with_ends(dataset, ends)) == []


def column(values: np.ndarray, at: int = 0) -> Dataset:
    """One episode with these observations in one of two columns, the other about 1 wide."""
    observations = np.random.default_rng(1).normal(size=(len(values), 2))
    observations[:, at] = values
    steps = len(values) - 1
    rewards = np.arange(steps)
    return from_episodes(
        [Episode(observations, np.zeros((steps, 1)), rewards, np.zeros(steps))], "one-v0"
    )


def test_columns_that_float32_can_not_hold() -> None:
    near = np.random.default_rng(0).normal(size=366)
    assert len(np.unique(np.float32(1e7 + near))) == 8
    (told,) = checks.about_dataset(column(1e7 + near, at=1))
    assert re.fullmatch(
        r"1 of 2 observation columns lie so far from 0 that float32 can't tell their values apart; "
        r"the first is column 1, 1e\+07 \+- 1\.\d+, where float32's numbers are 1 apart",
        told,
    )
    (told,) = checks.about_dataset(column(1e9 + near))  # nothing is left of it
    assert "the first is column 0, 1e+09 +- 0, where float32's numbers are 64 apart" in told
    for fine in (1e4 + near, 1e7 + 1e4 * near, 1 + 1e-7 * near, np.full(366, 1e4), 0 * near):
        assert checks.about_dataset(column(fine)) == []
    data = column(near)
    far = dataclasses.replace(data, rewards=np.float32(1e7 + np.append(near[:-1], 0)))
    (told,) = checks.about_dataset(far)
    assert re.match(
        r"the true rewards, 1e\+07 \+- 1\.\d+, lie so far from 0 that float32, whose", told
    )


def test_columns_that_normalising_leaves_next_to_constant() -> None:
    near = np.random.default_rng(0).normal(size=300)
    (told,) = checks.about_dataset(column(1e-5 * near, at=1))
    assert re.fullmatch(
        r"1 of 2 observation columns are so small that normalising, which adds 0.001 to each "
        r"standard deviation, leaves them next to constant; the first is column 1, of standard "
        r"deviation (9\.\d+e-06|1\.?\d*e-05) before and 0\.0\d+ after",
        told,
    )
    assert column(1e-5 * near).normaliser()(column(1e-5 * near).observations)[:, 0].std() < 0.011
    for fine in (1e-3 * near, 0.5 + 1e-5 * near, np.zeros(300)):
        assert checks.about_dataset(column(fine)) == []


def test_rewards_of_another_scale(numbered: Make) -> None:
    rewards = np.linspace(0, 10, 7).astype(np.float32)
    dataset = dataclasses.replace(numbered((3, 2)), rewards=rewards)
    assert checks.about_dataset(dataset, max_reward=10) == []
    larger = dataclasses.replace(dataset, rewards=100 * rewards)
    assert checks.about_dataset(larger) == []
    assert checks.about_dataset(larger, max_reward=10) == [
        "a true reward is 833.333, where a step gives 10 at most: a tie threshold made for such "
        "rewards finds too few ties"
    ]


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
        ((0.4, 0.6, *[0.5] * 5), None),
        (
            (0.4, 0.6, *[0.5] * 6),
            "6 of 8 labels are ties, which leaves 2 to learn from; the tie threshold may be too "
            "large for the rewards",
        ),
    ],
)
def test_ties_and_one_sided_labels(labels: tuple[float, ...], warning: str | None) -> None:
    pairs = labelled(*((0, index, 1, 0, label) for index, label in enumerate(labels)))
    assert checks.about_labels(pairs) == ([warning] if warning else [])


def test_pairs_that_were_left_out_are_counted() -> None:
    pairs = dataclasses.replace(labelled((0, 0, 1, 0, 0), (0, 1, 1, 0, 1)), num_left_out=1)
    assert checks.about_labels(pairs) == [
        "1 of 3 labelled pairs pair a segment with itself and are left out"
    ]
