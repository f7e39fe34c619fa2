"""Actions, and their distributions, of what an actor network gives: one place for all learners."""

import jax
import jax.numpy as jnp

from appo_jax.networks import MLP, Params, forward


def deterministic_actions(
    network: MLP, params: Params, observations: jax.Array, dropout_key: jax.Array | None = None
) -> jax.Array:
    """The tanh of what the network gives: `[..., observation_dim]` to `[..., action_dim]`."""
    return jnp.tanh(forward(network, params, observations, dropout_key))


def squashed_gaussian(
    mean: jax.Array, log_std: jax.Array, noise: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """A sample of tanh(Normal(mean, exp(log_std))) by reparameterisation, with its log-density.

    All arguments `[..., action_dim]`, `noise` standard normal. Returns actions
    `[..., action_dim]` in [-1, 1] and log-densities `[...]`, summed over dimensions, with
    gradients to mean and log_std.
    """
    pre_tanh = mean + jnp.exp(log_std) * noise
    log_normal = -0.5 * jnp.square(noise) - log_std - 0.5 * jnp.log(2 * jnp.pi)
    # log(1 - tanh(u)^2), written so that it stays finite where tanh(u) rounds to 1.
    log_slope = 2 * (jnp.log(2.0) - pre_tanh - jax.nn.softplus(-2 * pre_tanh))
    return jnp.tanh(pre_tanh), jnp.sum(log_normal - log_slope, axis=-1)


def gaussian_log_prob(mean: jax.Array, log_std: jax.Array, actions: jax.Array) -> jax.Array:
    """Log-density of Normal(mean, exp(log_std)) at `actions`, summed over dimensions.

    mean, actions: `[..., action_dim]`; log_std: the same or `[action_dim]`. Returns `[...]`.
    """
    standardised = (actions - mean) * jnp.exp(-log_std)
    log_density = -0.5 * jnp.square(standardised) - log_std - 0.5 * jnp.log(2 * jnp.pi)
    return jnp.sum(log_density, axis=-1)
