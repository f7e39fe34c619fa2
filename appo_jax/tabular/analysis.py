"""The proof's quantities, exact: decomposition of the sub-optimality, pair loss, regret bound.

V^pi_{1, r} is the inner product of the policy's occupancy with r, so every term here is linear in
the rewards.
"""

import math

import chex
import jax
import jax.numpy as jnp
from flax import struct

from appo_jax.tabular.appo_with_model import Run, advantage_cost
from appo_jax.tabular.mdp import (
    MDP,
    all_trajectories,
    induced_reward,
    occupancy,
    q_values,
    returns,
    trajectory_probabilities,
)


class Decomposition(struct.PyTreeNode):
    """V^{pi*} - V^{pi^t} = (I) + (II) + (III), proof of both theorems.

    mle: (I), how wrong r_hat is, scalar, the same at each t. optimisation: (II), `[T]`. regret:
    (III), `[T]`. suboptimality: the left side, computed on its own, `[T]`.
    """

    mle: jax.Array
    optimisation: jax.Array
    regret: jax.Array
    suboptimality: jax.Array


@jax.jit
def decompose(
    mdp: MDP,
    optimal: jax.Array,
    reference: jax.Array,
    reward: jax.Array,
    rewards: jax.Array,
    policies: jax.Array,
) -> Decomposition:
    """The three terms, by dynamic programming in the true MDP.

    reward: r_hat, `[H, S, A]`. rewards: r^t, `[T, H, S, A]` (Algorithm 1's answers, or
    `induced_rewards` of Algorithm 2's). policies: pi^t, `[T, H, S, A]`.
    """
    chex.assert_equal_shape([rewards, policies])
    at_optimal, at_reference = occupancy(mdp, optimal), occupancy(mdp, reference)
    at_policies = jax.vmap(lambda policy: occupancy(mdp, policy))(policies)
    advantage = at_optimal - at_reference
    truth = mdp.reward
    optimisation = (
        _inner(reward - rewards, advantage)
        - _inner(truth, at_policies - at_reference)
        + _inner(rewards, at_policies - at_reference)
    )
    return Decomposition(
        mle=jnp.sum((truth - reward) * advantage),
        optimisation=optimisation,
        regret=_inner(rewards, at_optimal - at_policies),
        suboptimality=_inner(truth, at_optimal - at_policies),
    )


def _inner(first: jax.Array, second: jax.Array) -> jax.Array:
    return jnp.sum(first * second, axis=(-3, -2, -1))


@jax.jit
def induced_rewards(mdp: MDP, run: Run) -> jax.Array:
    """r^t = r^{pi^t}_{P*, f^t} of Algorithm 2's run, `[T, H, S, A]`."""
    return jax.vmap(lambda f, policy: induced_reward(mdp.transition, f, policy))(
        run.answers, run.policies
    )


@jax.jit
def pair_loss(mdp: MDP, reference: jax.Array, reward: jax.Array, other: jax.Array) -> jax.Array:
    """E(r; r~): mean over independent tau^0, tau^1 of mu of |(r - r~)(tau^0) - (r - r~)(tau^1)|.

    Exact, by enumerating the trajectories: the mean difference of two independent copies of a
    scalar is 2 times the integral of F (1 - F). Scalar.
    """
    trajectories = all_trajectories(*mdp.reward.shape)
    differences = returns(reward - other, trajectories)
    probabilities = trajectory_probabilities(mdp, reference, trajectories)
    order = jnp.argsort(differences)
    below = jnp.cumsum(probabilities[order])[:-1]
    return 2 * jnp.sum(below * (1 - below) * jnp.diff(differences[order]))


@jax.jit
def optimisation_gap(
    mdp: MDP,
    reference: jax.Array,
    reward: jax.Array,
    lam: jax.Array | float,
    f: jax.Array,
    policy: jax.Array,
) -> jax.Array:
    """L_opt(f; P*, r_hat) - L_opt(Q^pi; P*, r_hat) under the true distributions; scalar, any sign.

    For lambda >= C_TR, (II) <= lambda E(Q^pi; P*, r_hat) + this, whatever f is.
    """
    cost = advantage_cost(occupancy(mdp, reference), policy)
    induced = induced_reward(mdp.transition, f, policy)
    at_f = jnp.sum(cost * f) + lam * pair_loss(mdp, reference, induced, reward)
    # The reward that Q^pi induces is the true one.
    at_q = jnp.sum(cost * q_values(mdp, policy)) + lam * pair_loss(
        mdp, reference, mdp.reward, reward
    )
    return at_f - at_q


@jax.jit
def estimated_regret(mdp: MDP, optimal: jax.Array, run: Run) -> jax.Array:
    """sum_h E_{s ~ d*_h} <scores^t_h(s, .), pi*_h - pi^t_h>, `[T]`: what the policy update bounds.

    For Algorithm 2 this is (III); for Algorithm 1, (III) is this plus the effect of PE's error.
    """
    states = jnp.sum(occupancy(mdp, optimal), axis=-1, keepdims=True)
    return _inner(states * run.scores, optimal - run.policies)


def regret_bound(bound: float, horizon: int, num_actions: int, num_iterations: int) -> float:
    """R H sqrt(2 T log|A|), the bound on the sum over t of `estimated_regret`.

    Differs from the paper: it prints R H sqrt(T log|A| / 2), but its sum log|A| / eta +
    eta R^2 T / 2 at the stated eta is twice that, and there are runs between the two. As the scores
    lie in [0, R], Hoeffding's lemma gives eta R^2 T / 8 for the second term: 5/8 of this bound.
    """
    return bound * horizon * math.sqrt(2 * num_iterations * math.log(num_actions))
