"""The survival check: what does a data set teach when the reward says something else, or nothing?

A data set can teach its task without any reward, as when its behaviour is good already: then a
policy that "survives" a wrong reward says nothing about preferences. `--reward` picks what trains
the policy in place of the learned reward r_hat; the scale stays that of r_hat's default, [0, 1].
"""

import jax
import jax.numpy as jnp

from appo_jax.data.dataset import Dataset
from appo_jax.keys import Purpose, purpose_key

# What each is, as `--help` says it.
REWARDS = {
    "learned": "r_hat of the labels",
    "shuffled": "r_hat permuted over the transitions",
    "negated": "r_hat upside down",
    "true": "the data set's own, scaled to [0, 1]",
    "zero": "0 everywhere",
}
UNLEARNED = ("true", "zero")  # no labels needed


def rewards(kind: str, seed: int, dataset: Dataset, learned: jax.Array) -> jax.Array:
    """What `--reward=<kind>` asks for, `[rows]`; 0 on rows that start no transition.

    seed: the run's. learned: `[rows]`, r_hat; not read for "true" and "zero".
    """
    rows = jnp.asarray(dataset.transition_rows())
    of_rows = learned[rows]
    match kind:
        case "learned":
            return learned
        case "shuffled":
            key = purpose_key(seed, Purpose.SHUFFLED_REWARDS)
            found = learned[jax.random.permutation(key, rows)]
        case "negated":
            found = of_rows.max() + of_rows.min() - of_rows  # 1 - r_hat for r_hat in [0, 1]
        case "true":
            found = jnp.asarray(dataset.rewards)[rows]
            span = found.max() - found.min()
            found = jnp.where(span > 0, (found - found.min()) / span, 0.0)
        case "zero":
            found = jnp.zeros_like(of_rows)
        case _:
            raise ValueError(kind)
    return jnp.zeros_like(learned).at[rows].set(found)
