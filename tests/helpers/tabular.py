"""Random tabular instances in float64, and the linear program of the inner problem."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse
from scipy.optimize import linprog

from appo_jax.tabular import adversary, appo_with_model, estimation, generators
from appo_jax.tabular.mdp import (
    MDP,
    Trajectories,
    optimal_policy,
    trajectory_concentrability,
)


def x64() -> Any:
    """Float64 within the scope; the rest of the process stays in float32."""
    if hasattr(jax, "enable_x64"):
        return jax.enable_x64(True)
    from jax.experimental import enable_x64  # until jax 0.8

    return enable_x64()


def random_policy(key: jax.Array, mdp: MDP) -> jax.Array:
    return jax.nn.softmax(2 * jax.random.normal(key, mdp.reward.shape, mdp.reward.dtype), axis=-1)


class Instance(NamedTuple):
    """An MDP, mu, pi*, C_TR, the estimates, and the half of the pairs for the losses."""

    mdp: MDP
    reference: jax.Array
    optimal: jax.Array
    concentrability: jax.Array
    model: MDP
    pairs: Trajectories


# By seed: an instance, lambda, and a run of Algorithm 2.
Runs = dict[int, tuple[Instance, float, appo_with_model.Run]]


def instance(
    seed: int, num_labelled: int = 200, num_unlabelled: int = 300, share: float = 0.3, **sizes: Any
) -> Instance:
    mdp_key, data_key = jax.random.split(jax.random.key(seed))
    mdp = generators.garnet(mdp_key, **sizes)
    reference = generators.mixture_reference(mdp, share)
    data = estimation.collect(mdp, reference, data_key, num_labelled, num_unlabelled)
    first, second = estimation.split_half(data.unlabelled)
    model = mdp.replace(
        reward=estimation.fit_reward(mdp, data.labelled, data.labels),
        transition=estimation.fit_transition(mdp, first),
    )
    optimal = optimal_policy(mdp)
    concentrability = trajectory_concentrability(mdp, optimal, reference)
    return Instance(mdp, reference, optimal, concentrability, model, second)


def inner_problem(
    found: Instance, policy: jax.Array
) -> tuple[adversary.PairTerm, jax.Array, jax.Array]:
    """The pair term, the cost and the operator of the inner problem at a policy."""
    differences = estimation.pair_features(found.pairs, 4, 2)
    term = adversary.pair_term(differences, found.model.reward.ravel())
    frequencies = appo_with_model.visit_frequencies(found.pairs, 4, 2)
    cost = appo_with_model.advantage_cost(frequencies, policy).ravel()
    return term, cost, appo_with_model.reward_operator(found.model.transition, policy)


def linear_program(
    cost: jax.Array,
    differences: jax.Array,
    operator: jax.Array,
    rewards: jax.Array,
    lam: float,
    upper: float,
) -> tuple[float, jax.Array]:
    """The least objective of the inner problem, and where it is reached, by HiGHS.

    With slacks e: minimise cost . x + lambda mean e subject to -e <= D (K x - r_hat) <= e.
    """
    num_pairs, size = differences.shape
    rows = scipy.sparse.csr_matrix(np.asarray(differences @ operator))
    slack = scipy.sparse.identity(num_pairs)
    offset = np.asarray(differences @ rewards)
    result = linprog(
        np.concatenate([np.asarray(cost), np.full(num_pairs, lam / num_pairs)]),
        A_ub=scipy.sparse.bmat([[rows, -slack], [-rows, -slack]]),
        b_ub=np.concatenate([offset, -offset]),
        bounds=[(0, upper)] * size + [(0, None)] * num_pairs,
        method="highs",
    )
    assert result.status == 0, result.message
    return float(result.fun), jnp.asarray(result.x[:size])
