"""Algorithm 3, PE: Monte Carlo policy evaluation by rollouts in the true MDP."""

import functools

import jax
import jax.numpy as jnp

from appo_jax.tabular.mdp import MDP, occupancy, q_values, sample_trajectories


def rollin_policies(reference: jax.Array, policy: jax.Array) -> jax.Array:
    """Line 4: whom a rollout for step h follows, `[H, H, S, A]`, h first.

    The reference before h, at h the half-half mixture, after it the policy.
    """
    steps = jnp.arange(len(policy))
    place = (steps - steps[:, None])[..., None, None]
    return jnp.where(place > 0, policy, jnp.where(place < 0, reference, (reference + policy) / 2))


@functools.partial(jax.jit, static_argnames="num_rollouts")
def evaluate(
    mdp: MDP, reference: jax.Array, policy: jax.Array, key: jax.Array, num_rollouts: int
) -> jax.Array:
    """Q-bar of the policy for `mdp.reward`, `[H, S, A]`, from K = `num_rollouts` for each step h.

    Rewards lie in [0, R / H]. Least squares over all functions in [0, R] is then the mean of the
    returns from h on, for each (s, a); where none was seen any value fits, and 0, of the smallest
    norm, is taken.

    Differs from the paper: the listing sums r_hat; the reward of the caller's iteration, r^t, is
    what the lemma is about.
    """
    horizon, num_states, num_actions = mdp.reward.shape
    steps = jnp.arange(horizon)

    def one_step(h: jax.Array, rollin: jax.Array, key: jax.Array) -> jax.Array:
        found = sample_trajectories(mdp, rollin, key, (num_rollouts,))
        rewards = mdp.reward[steps, found.states, found.actions]
        to_go = jnp.sum(jnp.where(steps >= h, rewards, 0), axis=-1)
        cells = found.states[:, h] * num_actions + found.actions[:, h]
        chosen = jax.nn.one_hot(cells, num_states * num_actions, dtype=rewards.dtype)
        means = to_go @ chosen / jnp.maximum(jnp.sum(chosen, axis=0), 1)
        return means.reshape(num_states, num_actions)

    keys = jax.random.split(key, horizon)
    return jax.vmap(one_step)(steps, rollin_policies(reference, policy), keys)


def squared_error(
    mdp: MDP, reference: jax.Array, policy: jax.Array, estimate: jax.Array
) -> jax.Array:
    """The left side of the lemma on PE, `[H]`: mean of (Q-bar - Q^pi)^2, exactly.

    Over s from the reference and a from the half-half mixture at each step.
    """
    states = jnp.sum(occupancy(mdp, reference), axis=-1, keepdims=True)
    weights = states * (reference + policy) / 2
    return jnp.sum(weights * jnp.square(estimate - q_values(mdp, policy)), axis=(-2, -1))
