"""Which reward learner feeds which policy learner: a new algorithm is one line here."""

import dataclasses

from appo_jax import (
    appo,
    bc,
    by_name,
    cpl,
    dppo,
    ipl,
    iql,
    preference_predictor,
    preference_transformer,
    pvo,
    reward_model,
)
from appo_jax.training import PolicyLearner, RewardLearner
from appo_jax.types import InputError


@dataclasses.dataclass(frozen=True)
class Algorithm:
    """A policy learner's module, and where its rewards come from.

    help: what it is, for a person. reward_learner: the module that learns r_hat from the labels,
    None where the policy learner reads no rewards, or, with `true_rewards`, the data set's own.
    of_windows: what stands at a row isn't the reward of its transition but the score of the window
    of `segment_length` steps that ends with it, or of fewer, where its episode begins later.
    """

    help: str
    policy_learner: PolicyLearner
    reward_learner: RewardLearner | None = None
    true_rewards: bool = False
    of_windows: bool = False


ALGORITHMS = {
    "appo": Algorithm(
        "APPO: adversarial policy optimisation on a learned reward", appo, reward_model
    ),
    "mr": Algorithm("Markovian reward: IQL on a learned reward", iql, reward_model),
    "pt": Algorithm(
        "Preference Transformer: IQL on a learned reward that knows the past",
        iql,
        preference_transformer,
    ),
    "pvo": Algorithm("PVO: IQL whose Q differs between segments as r_hat does", pvo, reward_model),
    "dppo": Algorithm(
        "DPPO: imitation of the windows that a predictor of preferences scores highest",
        dppo,
        preference_predictor,
        of_windows=True,
    ),
    "oracle": Algorithm("IQL on the data set's true rewards", iql, true_rewards=True),
    "ipl": Algorithm("Inverse Preference Learning: IQL on the reward that Q implies", ipl),
    "cpl": Algorithm("Contrastive Preference Learning: a policy from the labels alone", cpl),
    "bc": Algorithm("behaviour cloning of the preferred segments, or of all data", bc),
}


def algorithm(name: str) -> Algorithm:
    """The algorithm of that name: of `ALGORITHMS`, or `module:name` of one's own.

    `module:name` imports `module` and takes its `Algorithm` called `name`. Raises InputError for
    an unknown one.
    """
    if name in ALGORITHMS:
        return ALGORITHMS[name]
    found = by_name.find("algorithm", name, ALGORITHMS)
    if not isinstance(found, Algorithm):
        raise InputError(f"algorithm {name!r}: found {found!r:.60}, expected a registry.Algorithm")
    return found
