"""Algorithms by name, and one's own."""

import pytest

from appo_jax import (
    appo,
    bc,
    cpl,
    dppo,
    ipl,
    iql,
    preference_predictor,
    preference_transformer,
    pvo,
    registry,
    reward_model,
)
from appo_jax.types import InputError

OWN = registry.Algorithm("one's own", iql)
NOT_ONE = "text"


@pytest.mark.parametrize(
    ("name", "policy_learner", "reward_learner"),
    [
        ("appo", appo, reward_model),
        ("mr", iql, reward_model),
        ("pt", iql, preference_transformer),
        ("pvo", pvo, reward_model),
        ("dppo", dppo, preference_predictor),
        ("oracle", iql, None),
        ("ipl", ipl, None),
        ("cpl", cpl, None),
        ("bc", bc, None),
    ],
)
def test_names(name: str, policy_learner: object, reward_learner: object) -> None:
    found = registry.algorithm(name)
    assert found.policy_learner is policy_learner
    assert found.reward_learner is reward_learner


def test_an_algorithm_of_ones_own() -> None:
    assert registry.algorithm(f"{__name__}:OWN") is OWN


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("appoo", "algorithm 'appoo': expected appo, mr, pt, pvo, dppo, oracle, ipl, cpl, bc"),
        (":OWN", "algorithm ':OWN': expected appo, mr"),
        (".registry:OWN", "algorithm '.registry:OWN': expected appo, mr"),
        ("no_such_module:OWN", "algorithm 'no_such_module:OWN': No module named 'no_such_module'"),
        (f"{__name__}:MISSING", "has no attribute 'MISSING', expected a module that has it"),
        (f"{__name__}:NOT_ONE", "found 'text', expected a registry.Algorithm"),
    ],
)
def test_a_wrong_name_is_told(name: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        registry.algorithm(name)
    assert message in str(error.value)
