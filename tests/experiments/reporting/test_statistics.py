"""Statistics over tasks and seeds, against values worked out by hand."""

import numpy as np
import pytest

from experiments.reporting import statistics
from experiments.reporting.statistics import Estimate


def test_interquartile_mean_of_all_runs_together() -> None:
    # Of 1 to 8 the two least and the two greatest go: (3 + 4 + 5 + 6) / 4. Runs are cut off
    # wherever they are, so that a task may lose all of its own.
    found = statistics.interquartile_mean([np.array([1.0, 2.0, 3.0, 4.0]), np.arange(5.0, 9.0)])
    assert found.value == 4.5
    # Of five runs one goes at each end (5 / 4, rounded down): (2 + 3 + 4) / 3.
    assert statistics.interquartile_mean([np.array([100.0, 3.0, 2.0, 4.0, -9.0])]).value == 3


def test_intervals_are_stratified() -> None:
    # One seed a task: drawing it again gives it again, and no task takes another's place.
    one_seed = [np.array([0.0]), np.array([100.0])]
    assert statistics.interquartile_mean(one_seed) == Estimate(50, 50, 50)
    # Of seeds 0 and 1 a replicate's mean is 0, 1/2 or 1 with chances 1/4, 1/2, 1/4.
    assert statistics.interquartile_mean([np.array([0.0, 1.0])]) == Estimate(0.5, 0, 1)
    # The standard error of the mean of 400 normals of deviation 10 is 1/2; the middle half's mean
    # has variance 1.19 / n of the whole's: 1.96 * 0.545 = 1.07 on each side.
    many = np.random.default_rng(1).normal(50, 10, 400)
    value, low, high = statistics.interquartile_mean([many])
    assert value - low == pytest.approx(1.07, rel=0.2)
    assert high - value == pytest.approx(1.07, rel=0.2)


def test_performance_profile() -> None:
    scores = [np.array([10.0, 20.0, 30.0, 40.0]), np.array([25.0, 90.0])]
    at_20, at_40 = statistics.performance_profile(scores, np.array([20.0, 40.0]))
    assert at_20.value == (2 / 4 + 2 / 2) / 2  # above, not at; tasks count alike
    assert at_40.value == (0 / 4 + 1 / 2) / 2
    assert 0 <= at_40.low <= at_40.value <= at_40.high <= 1


def test_probability_of_improvement() -> None:
    # Pairs of task 1: 1-1 ties (1/2), 1-3 loses, 2-1 wins, 2-3 loses: 1.5 of 4. Task 2: all won.
    own = [np.array([1.0, 2.0]), np.array([9.0])]
    other = [np.array([1.0, 3.0]), np.array([1.0, 2.0, 3.0])]
    assert statistics.probability_of_improvement(own, other).value == (1.5 / 4 + 1) / 2
    assert statistics.probability_of_improvement(other, own).value == 1 - (1.5 / 4 + 1) / 2
    same = statistics.probability_of_improvement(own, own)
    assert same.value == 0.5


def test_average_ranks_share_ties() -> None:
    rows = [{"a": 3.0, "b": 2.0, "c": 2.0}, {"a": 1.0, "b": 5.0, "c": 0.0}]
    assert statistics.average_ranks(rows) == {"a": 1.5, "b": 1.75, "c": 2.75}
