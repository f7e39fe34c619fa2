"""The paper's equations as functions of arrays: no networks, no parameters.

Symbols of the paper (arXiv 2503.05306, section 5) to names here: phi `critic`, phi-bar
`target critic`, psi `value`, theta `actor`, r_hat `rewards`, lambda `lam`, gamma `discount`
(a `discounts` array is gamma, or 0 where the step reached a terminal state), alpha `temperature`.
"""

import chex
import jax
import jax.numpy as jnp


def adversarial_loss(q_policy: jax.Array, q_data: jax.Array) -> jax.Array:
    """L_adv: mean of Q(s, pi(s)) - Q(s, a), eq. "practical q loss", first line.

    q_policy, q_data: `[batch]`, one critic at the policy's and at the data's actions.
    Returns a scalar.
    """
    chex.assert_rank([q_policy, q_data], 1)
    chex.assert_equal_shape([q_policy, q_data])
    return jnp.mean(q_policy - q_data)


def pair_error(
    q: jax.Array, next_values: jax.Array, rewards: jax.Array, discounts: jax.Array
) -> jax.Array:
    """E: how far the segments' summed TD errors differ, eq. "practical q loss", second line.

    mean over pairs of |sum_l (Q(s_l, a_l) - gamma V(s_{l+1}) - r_hat(s_l, a_l)) of segment 0 minus
    the same of segment 1|.

    q, next_values, rewards, discounts: `[pairs, 2, length]`; next_values are V(s_{l+1}).
    Returns a scalar.
    """
    td_errors = _summed_td_errors(q, next_values, rewards, discounts)
    return jnp.mean(jnp.abs(td_errors[:, 0] - td_errors[:, 1]))


def segment_error(
    q: jax.Array, next_values: jax.Array, rewards: jax.Array, discounts: jax.Array
) -> jax.Array:
    """Mean over segments of the same sum's absolute value, for environments that can terminate.

    `pair_error` is the same for r_hat + c, and so leaves open whether going on is worth more than
    ending; this takes r_hat at its word. Not in the paper, whose episodes all have one length.
    Arguments as there.
    """
    return jnp.mean(jnp.abs(_summed_td_errors(q, next_values, rewards, discounts)))


def _summed_td_errors(
    q: jax.Array, next_values: jax.Array, rewards: jax.Array, discounts: jax.Array
) -> jax.Array:
    chex.assert_shape(q, (None, 2, None))
    chex.assert_equal_shape([q, next_values, rewards, discounts])
    return jnp.sum(q - discounts * next_values - rewards, axis=-1)


def critic_loss(lam: jax.Array | float, adversarial: jax.Array, error: jax.Array) -> jax.Array:
    """The loss lambda L_adv + E. A small lambda is little conservatism.

    Algorithm 2 of the paper has the reciprocal of this lambda.
    """
    return lam * adversarial + error


def value_loss(values: jax.Array, target_q: jax.Array) -> jax.Array:
    """Mean of (V(s) - min_i Q_target_i(s, pi(s)))^2, eq. "practical v loss".

    values: `[batch]`; target_q: `[critics, batch]`, no gradient. Returns a scalar.

    Differs from the paper: the equation prints the target at s_{h+1}; it is taken at the state
    whose value is regressed.
    """
    chex.assert_rank([values, target_q], [1, 2])
    chex.assert_equal_shape([values, target_q[0]])
    target = jax.lax.stop_gradient(jnp.min(target_q, axis=0))
    return jnp.mean(jnp.square(values - target))


def actor_loss(log_probs: jax.Array, q: jax.Array, temperature: jax.Array | float) -> jax.Array:
    """Mean of alpha log pi(a|s) - Q_i(s, a), to be minimised, eq. "practical actor loss".

    log_probs, q: `[batch]`, at one sampled action; q of one critic drawn at random. Returns a
    scalar.

    Differs from the paper: it prints alpha pi for alpha log pi, and ascends the negative.
    """
    chex.assert_rank([log_probs, q], 1)
    chex.assert_equal_shape([log_probs, q])
    return jnp.mean(temperature * log_probs - q)


def temperature_loss(
    log_temperature: jax.Array, log_probs: jax.Array, target_entropy: float
) -> jax.Array:
    """Mean of log alpha (-log pi - target entropy): entropy below its target raises alpha.

    log_temperature: scalar; log_probs: `[batch]`, no gradient. Returns a scalar. The form of SAC's
    code (Haarnoja et al. 2018), to which the paper refers for the entropy term; with alpha in
    place of its logarithm the gradient shrinks with alpha, which then falls more slowly.
    """
    chex.assert_rank([log_temperature, log_probs], [0, 1])
    return log_temperature * jax.lax.stop_gradient(jnp.mean(-log_probs) - target_entropy)


def preference_loss(scores: jax.Array, labels: jax.Array) -> jax.Array:
    """Bradley-Terry cross entropy with soft labels, for each pair.

    scores: `[..., 2]`, the segments' summed rewards; labels: `[...]`, probability that the second
    is preferred. Returns `[...]`: log 2 at equal scores, whatever the label.
    """
    chex.assert_equal_shape([scores[..., 0], labels])
    margin = scores[..., 1] - scores[..., 0]
    return jax.nn.softplus(margin) - labels * margin
