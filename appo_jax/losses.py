"""Losses that several papers share, as functions of arrays: no networks, no parameters.

What one paper alone uses lies in that paper's file.
"""

import chex
import jax
import jax.numpy as jnp


def preference_loss(scores: jax.Array, labels: jax.Array) -> jax.Array:
    """Bradley-Terry cross entropy with soft labels, for each pair.

    scores: `[..., 2]`, the segments' summed rewards; labels: `[...]`, probability that the second
    is preferred. Returns `[...]`: log 2 at equal scores, whatever the label.
    """
    chex.assert_equal_shape([scores[..., 0], labels])
    margin = scores[..., 1] - scores[..., 0]
    return jax.nn.softplus(margin) - labels * margin


def is_ordered(margin: jax.Array, labels: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Whether pairs are ordered as their labels say, and which are no ties.

    margin: `[..., pairs]`, the second segment's score minus the first's; labels: `[..., pairs]`.
    Returns two boolean arrays of that shape. Equal scores order no pair but ties.
    """
    return jnp.sign(margin) == jnp.sign(labels - 0.5), labels != 0.5


def actor_loss(log_probs: jax.Array, q: jax.Array, temperature: jax.Array | float) -> jax.Array:
    """Mean of alpha log pi(a|s) - Q_i(s, a), to be minimised, eq. "practical actor loss".

    log_probs, q: `[batch]`, at one sampled action; q of one critic drawn at random. Returns a
    scalar.

    Differs from the paper: it prints alpha pi for alpha log pi, and ascends the negative.
    """
    chex.assert_rank([log_probs, q], 1)
    chex.assert_equal_shape([log_probs, q])
    return jnp.mean(temperature * log_probs - q)


def weighted_cloning_loss(log_probs: jax.Array, weights: jax.Array) -> jax.Array:
    """Mean of -w log pi(a|s), IQL (Kostrikov et al. 2022), eq. 7.

    `[batch]` each, at the data's actions; w without gradient. Returns a scalar.
    """
    chex.assert_rank([log_probs, weights], 1)
    chex.assert_equal_shape([log_probs, weights])
    return -jnp.mean(weights * log_probs)


def summed_td_errors(
    q: jax.Array,
    next_values: jax.Array,
    rewards: jax.Array,
    discounts: jax.Array,
    is_step: jax.Array | None = None,
) -> jax.Array:
    """Sum over a segment's steps of Q(s_l, a_l) - gamma V(s_{l+1}) - r_hat(s_l, a_l).

    q, next_values, rewards, discounts: `[pairs, 2, length]`; next_values are V(s_{l+1}), discounts
    gamma, or 0 where the step reached a terminal state; is_step: of `SegmentPairs`. Returns
    `[pairs, 2]`.
    """
    chex.assert_shape(q, (None, 2, None))
    chex.assert_equal_shape([q, next_values, rewards, discounts])
    if is_step is not None:
        chex.assert_equal_shape([q, is_step])
    return jnp.sum(q - discounts * next_values - rewards, axis=-1, where=is_step)


def implied_returns(
    q: jax.Array, next_values: jax.Array, discounts: jax.Array, is_step: jax.Array | None = None
) -> jax.Array:
    """Sum over a segment's steps of Q(s_l, a_l) - gamma V(s_{l+1}), the reward Q and V stand for.

    Arguments and what is returned as in `summed_td_errors`.
    """
    return summed_td_errors(q, next_values, jnp.zeros_like(q), discounts, is_step)


def expectile_loss(differences: jax.Array, expectile: jax.Array | float) -> jax.Array:
    """Mean of |expectile - 1(u < 0)| u^2, IQL (Kostrikov et al. 2022), eq. 5.

    differences: `[batch]`, u = target - prediction. Returns a scalar. With 0.5 it is half the mean
    squared error.
    """
    chex.assert_rank(differences, 1)
    weights = jnp.where(differences < 0, 1 - expectile, expectile)
    return jnp.mean(weights * jnp.square(differences))


def advantage_weights(advantages: jax.Array, temperature: jax.Array | float) -> jax.Array:
    """Weights exp(temperature A) of weighted imitation, at most 100, without gradient."""
    weights = jnp.minimum(jnp.exp(temperature * advantages), 100.0)
    return jax.lax.stop_gradient(weights)
