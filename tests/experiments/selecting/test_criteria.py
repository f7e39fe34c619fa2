"""What each criterion chooses, by numbers that one can check by hand."""

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from appo_jax.data import preferences
from appo_jax.data.dataset import Episode, from_episodes
from appo_jax.types import InputError
from experiments.runs.results import RunResult
from experiments.selecting import criteria
from experiments.selecting.criteria import Judged
from experiments.selecting.held_out import HeldOut

_NOTHING: dict[str, Any] = {field.name: None for field in dataclasses.fields(RunResult)}


def judged(setting: str, score: float | None, **numbers: float) -> Judged:
    result = RunResult(**{**_NOTHING, "success_rate": score, "settings": {}})
    return Judged(result, setting, numbers)


def test_each_criterion_chooses_by_its_mean_over_seeds() -> None:
    runs = [
        judged("a", 10.0, values=90.0, error=0.3),
        judged("a", 30.0, values=60.0, error=0.4),
        judged("b", 50.0, values=80.0, error=0.5),
        judged("b", 70.0, values=80.0, error=0.6),
        judged("c", 80.0, values=50.0, error=0.2),
        judged("d", 99.0, error=0.1),  # an algorithm without a Q
    ]
    by_values, by_error = criteria.choose(runs)
    assert (by_values.criterion, by_values.chosen, by_values.num_settings) == ("values", ("b",), 3)
    # Means of values 75, 80, 50 and of scores 20, 60, 80: ranks 2, 3, 1 and 1, 2, 3, whose squared
    # differences sum to 6; 1 - 6 * 6 / (3 * 8).
    assert by_values.correlation == pytest.approx(-0.5)
    assert (by_error.chosen, by_error.num_settings) == (("d",), 4)
    # Less is better: ranks 2, 1, 3, 4 and 1, 2, 3, 4; 1 - 6 * 2 / (4 * 15).
    assert by_error.correlation == pytest.approx(0.8)
    assert criteria.mean_scores(runs) == {"a": 20, "b": 60, "c": 80, "d": 99}


def test_what_is_not_known_is_left_out() -> None:
    runs = [judged("a", None, values=90.0), judged("a", 30.0, values=60.0), judged("b", 1.0)]
    (only,) = criteria.choose(runs)
    assert (only.chosen, only.correlation, only.num_settings) == (("a",), None, 0)
    assert criteria.mean_scores(runs) == {"b": 1}
    same = [judged(setting, float(place), values=50.0) for place, setting in enumerate("abc")]
    (alike,) = criteria.choose(same)
    assert (alike.chosen, alike.correlation) == (("a", "b", "c"), None)
    odd = [judged("a", float("nan"), values=1.0), judged("b", 3.0, values=2.0)]
    assert criteria.mean_scores(odd) == {"b": 3}


def test_what_training_counts_otherwise_is_not_compared() -> None:
    def of(squared: bool, **numbers: float) -> Judged:
        one = judged(str(squared), 1.0, **numbers)
        settings = {"squared_error": squared, "lam": float(squared)}
        return dataclasses.replace(one, result=dataclasses.replace(one.result, settings=settings))

    runs = [of(False, values=1.0, error=5.0), of(True, values=2.0, error=25.0)]
    assert [choice.criterion for choice in criteria.choose(runs)] == ["values"]
    assert criteria.differing_units(runs, "error") == ["squared_error"]
    assert not criteria.differing_units(runs, "values")


def test_ties_alone_judge_nothing(numbered: Any) -> None:
    dataset = numbered()
    labels = preferences.from_arrays(dataset, [[0, 2]] * 2, [[0, 0]] * 2, [0.5, 0.5], 3)
    with pytest.raises(InputError, match="all 2 labels are ties, expected some"):
        HeldOut.of(dataset, labels)


def test_actions_are_near_or_far(numbered: Any) -> None:
    class Learner:
        @staticmethod
        def act(config: Any, state: Any, observations: Any) -> Any:
            return jnp.full((*observations.shape[:-1], 1), state)

    dataset = numbered()  # the action of row i is i + 1/4
    labels = preferences.from_arrays(dataset, [[0, 2]], [[0, 0]], [1.0], [[2, 3]])
    held_out = HeldOut.of(dataset, labels)
    known = held_out.store, held_out.view, held_out.pairs
    near = criteria._nearness(Learner, None, jnp.float32(7.25), *known)
    # Rows 0 and 1 are 7 and 6 from it, rows 6 to 8 are 1, 0 and 1.
    np.testing.assert_allclose(near, [[-(49 + 36) / 2, -2 / 3]], rtol=1e-5)


def test_a_last_action_whose_next_observation_is_unknown_is_left_out() -> None:
    episode = Episode(np.zeros((4, 1)), np.zeros((3, 1)), np.zeros(3), np.zeros(3), last_action=[1])
    dataset = from_episodes([episode] * 2, "tiny/last-v0")
    labels = preferences.from_arrays(dataset, [[0, 1]], [[0, 0]], [1.0], 4)
    held_out = HeldOut.of(dataset, labels)
    assert (held_out.pairs.length, held_out.pairs.lengths) == (3, None)
    longer = preferences.from_arrays(
        dataset, [[0, 1]] * 2, [[0, 0], [1, 0]], [1.0, 0.0], [[3, 4]] * 2
    )
    np.testing.assert_array_equal(HeldOut.of(dataset, longer).pairs.lengths, [[3, 3], [2, 3]])
    alone = preferences.from_arrays(
        dataset, [[0, 1]] * 2, [[0, 0], [0, 3]], [1.0, 0.0], [[3, 4], [4, 1]]
    )
    with pytest.raises(InputError, match="^label 1: a segment of one step, the last of its epis"):
        HeldOut.of(dataset, alone)
