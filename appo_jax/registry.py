"""Which reward learner feeds which policy learner."""

import dataclasses

from appo_jax import appo, reward_model
from appo_jax.training import PolicyLearner, RewardLearner
from appo_jax.types import InputError


@dataclasses.dataclass(frozen=True)
class Algorithm:
    """A reward learner's module and a policy learner's module."""

    reward_learner: RewardLearner
    policy_learner: PolicyLearner


ALGORITHMS = {"appo": Algorithm(reward_model, appo)}


def algorithm(name: str) -> Algorithm:
    """The algorithm of that name. Raises InputError for an unknown one."""
    if name not in ALGORITHMS:
        raise InputError(f"algorithm {name!r}: expected one of {', '.join(ALGORITHMS)}")
    return ALGORITHMS[name]
