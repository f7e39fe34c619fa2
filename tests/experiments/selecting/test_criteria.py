"""What each criterion chooses, by numbers that one can check by hand."""

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from appo_jax.data import preferences
from appo_jax.types import InputError
from experiments.runs.results import RunResult
from experiments.selecting import criteria
from experiments.selecting.criteria import HeldOut, Judged

_NOTHING: dict[str, Any] = {field.name: None for field in dataclasses.fields(RunResult)}


def judged(setting: str, score: float | None, **numbers: float) -> Judged:
    return Judged(RunResult(**{**_NOTHING, "success_rate": score}), setting, numbers)


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
    assert (by_values.criterion, by_values.chosen, by_values.num_settings) == ("values", "b", 3)
    # Means of values 75, 80, 50 and of scores 20, 60, 80: ranks 2, 3, 1 and 1, 2, 3, whose squared
    # differences sum to 6; 1 - 6 * 6 / (3 * 8).
    assert by_values.correlation == pytest.approx(-0.5)
    assert (by_error.chosen, by_error.num_settings) == ("d", 4)
    # Less is better: ranks 2, 1, 3, 4 and 1, 2, 3, 4; 1 - 6 * 2 / (4 * 15).
    assert by_error.correlation == pytest.approx(0.8)
    assert criteria.mean_scores(runs) == {"a": 20, "b": 60, "c": 80, "d": 99}


def test_what_is_not_known_is_left_out() -> None:
    runs = [judged("a", None, values=90.0), judged("a", 30.0, values=60.0), judged("b", 1.0)]
    (only,) = criteria.choose(runs)
    assert (only.chosen, only.correlation, only.num_settings) == ("a", None, 0)
    assert criteria.mean_scores(runs) == {"b": 1}
    same = [judged(setting, float(place), values=50.0) for place, setting in enumerate("abc")]
    assert criteria.choose(same)[0].correlation is None


def test_ties_alone_judge_nothing(numbered: Any) -> None:
    dataset = numbered()
    labels = preferences.from_arrays(dataset, [[0, 2]] * 2, [[0, 0]] * 2, [0.5, 0.5], 3)
    with pytest.raises(InputError, match="all 2 labels of tiny/numbered-v0 are ties, expected"):
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
    np.testing.assert_allclose(near, [[-(49 + 36), -2]], rtol=1e-5)
