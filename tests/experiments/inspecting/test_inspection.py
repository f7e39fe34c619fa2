"""What is said of a data set and its labels, on data with known faults."""

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest

from appo_jax.data import preferences
from appo_jax.data.dataset import Dataset, Episode, from_episodes
from appo_jax.types import InputError
from experiments.inspecting import inspection


def make(count: int = 20, last: bool = False, kinds: int = 1) -> Dataset:
    """Episodes of ten steps. last: each ends where the next begins. kinds: of beginnings."""
    draw = np.random.default_rng(0)
    observations = draw.normal(size=(count, 11, 3))
    observations[:, 0, 1] = np.arange(count) % kinds
    observations[:, :, 2] = 5
    if last:
        observations[:-1, -1] = observations[1:, 0]
    episodes = [
        Episode(rows, np.where(draw.random((10, 1)) < 0.5, 1, 0.2), np.arange(10.0), np.zeros(10))
        for rows in observations
    ]
    return from_episodes(episodes, "mine/made-v0")


def test_what_is_counted() -> None:
    lines = inspection.dataset_lines(make())
    assert lines[0] == "lengths       10, 10, 10, 10, 10 (least, quartiles, greatest)"
    assert lines[1] == "returns       45, 45, 45, 45, 45 (least, quartiles, greatest)"
    share = float(lines[2].split()[1])
    assert 40 < share < 60  # half of the actions are 1
    assert lines[3] == "constant      2 of 3 columns"
    unknown = dataclasses.replace(make(), rewards=None)
    assert not any(line.startswith("returns") for line in inspection.dataset_lines(unknown))


def test_traps() -> None:
    assert inspection.dataset_warnings(make(), None) == []
    (shifted,) = inspection.dataset_warnings(make(last=True), None)
    assert shifted.startswith("the last observation of 19 of 20 episodes is the first of the next")
    (mixed,) = inspection.dataset_warnings(make(kinds=2), None)
    assert "begin with one of 2 values of observation column 1 (0 in 10, 1 in 10 of 20)" in mixed


def test_labels_and_the_truth() -> None:
    data = make()
    # Rewards grow from 0 to 9, so later is better; the third label is wrong, the last no truth.
    labels = preferences.from_arrays(
        data,
        episodes=[[0, 1], [2, 3], [4, 5], [6, 7]],
        starts=[[0, 5], [7, 1], [0, 5], [3, 4]],
        labels=[1, 0, 0, 0.5],
        segment_length=3,
    )
    (truth,) = inspection.truth_lines(data, labels)
    assert truth.startswith("truth         66.7 % of 3 labels that aren't ties are as the true")
    # By its ten steps the first segment of the last pair is better: 45 against 0 + 1.
    longer = preferences.from_arrays(data, [[0, 1]], [[0, 0]], [0], [[10, 2]])
    assert inspection.truth_lines(data, longer)[0].startswith("truth         100.0 % of 1 labels")


@pytest.mark.slow
def test_folds(numbered: Callable[..., Dataset]) -> None:
    data = numbered((30, 30, 30))
    labels = preferences.scripted(data, 0, 40, 5, 0.0)
    found = inspection.cross_validate(data, labels, 4)
    assert found.count == 40
    assert found.accuracy > 0.9  # reward grows with the row, which the observation shows
    assert 0.3 < found.majority < 0.7
    # What no model can know: a fold's own answers aren't among those that it is fitted to.
    guesses = np.random.default_rng(0).integers(2, size=40).astype(np.float32)
    unknown = inspection.cross_validate(data, dataclasses.replace(labels, labels=guesses), 4)
    assert unknown.accuracy < 0.75
    with pytest.raises(InputError, match="--folds=50: 40 labels aren't ties, expected at least"):
        inspection.cross_validate(data, labels, 50)
