"""The densities of actions: known values, masses of one, extremes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from appo_jax.actors import gaussian_log_prob, squashed_gaussian


@pytest.mark.parametrize(
    ("noise", "expected"),
    [
        # Standard normal at 0: -log(2 pi) / 2 = -0.918939; tanh has slope 1 there.
        (0.0, -0.918939),
        # At 1: -0.918939 - 0.5 = -1.418939; minus log(1 - tanh(1)^2) = +0.867562.
        (1.0, -0.551377),
    ],
)
def test_log_density_by_hand(noise: float, expected: float) -> None:
    for dim in (1, 4):
        zeros = jnp.zeros((1, dim))
        actions, log_probs = squashed_gaussian(zeros, zeros, zeros + noise)
        np.testing.assert_allclose(actions, np.tanh(noise) * np.ones((1, dim)), rtol=1e-6)
        np.testing.assert_allclose(log_probs, [dim * expected], rtol=1e-5)


def test_density_integrates_to_one() -> None:
    # The density of a = tanh(u) over a grid of u: sum p(a) da with da = (1 - a^2) du.
    pre_tanh = jnp.linspace(-8, 8, 4001)[:, None]
    mean, log_std = jnp.full_like(pre_tanh, 0.3), jnp.full_like(pre_tanh, -0.5)
    noise = (pre_tanh - mean) / jnp.exp(log_std)
    actions, log_probs = squashed_gaussian(mean, log_std, noise)
    mass = jnp.sum(jnp.exp(log_probs) * (1 - actions[:, 0] ** 2)) * (16 / 4000)
    assert mass == pytest.approx(1.0, abs=1e-3)


def test_extreme_inputs_stay_finite() -> None:
    mean = jnp.array([[30.0], [-30.0]])

    def log_prob(mean: jax.Array, log_std: jax.Array) -> jax.Array:
        return squashed_gaussian(mean, log_std, jnp.ones_like(mean))[1].sum()

    for log_std in (-20.0, 2.0):
        value, gradients = jax.value_and_grad(log_prob, argnums=(0, 1))(
            mean, jnp.full_like(mean, log_std)
        )
        assert np.isfinite(value)
        assert all(np.isfinite(gradient).all() for gradient in gradients)


@pytest.mark.parametrize(
    ("distance", "log_std", "expected"),
    [
        # Four dimensions at the mean with deviation 1: -4 log(2 pi) / 2.
        (0.0, 0.0, -3.67575),
        # Half a deviation off in each: 4 * 0.125 less. Below the mean the same.
        (0.5, 0.0, -4.17575),
        (-0.5, 0.0, -4.17575),
        # Deviation 2: the same 0.5 is a quarter of it, 4 * 0.25^2 / 2 = 0.125, and 4 log 2 less.
        (0.5, 0.693147, -3.67575 - 0.125 - 2.77259),
    ],
)
def test_gaussian_log_density_by_hand(distance: float, log_std: float, expected: float) -> None:
    mean = jnp.array([[0.1, -0.2, 0.3, 0.0]])
    found = gaussian_log_prob(mean, jnp.full(4, log_std), mean + distance)
    np.testing.assert_allclose(found, [expected], atol=1e-5)
    found = gaussian_log_prob(mean, jnp.full((1, 4), log_std), mean + distance)
    np.testing.assert_allclose(found, [expected], atol=1e-5)


def test_gaussian_gradients_by_hand() -> None:
    # z = (a - mean) / std = 2 with std 1/2: d/dmean = z / std = 4, d/dlog_std = z^2 - 1 = 3.
    def log_prob(mean: jax.Array, log_std: jax.Array) -> jax.Array:
        return gaussian_log_prob(mean, log_std, jnp.array([1.0]))

    to_mean, to_log_std = jax.grad(log_prob, argnums=(0, 1))(
        jnp.zeros(1), jnp.log(jnp.full(1, 0.5))
    )
    np.testing.assert_allclose(to_mean, [4.0], rtol=1e-6)
    np.testing.assert_allclose(to_log_std, [3.0], rtol=1e-6)


def test_gaussian_extremes_stay_finite() -> None:
    # The narrowest that a learner allows, half the range of actions off: -(e^20 / 1)^2 / 2.
    found = gaussian_log_prob(jnp.zeros((1, 1)), jnp.array([-20.0]), jnp.ones((1, 1)))
    np.testing.assert_allclose(found, [-0.5 * np.exp(40.0)], rtol=1e-5)
