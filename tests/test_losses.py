"""Known answers of the losses that several papers share, each derived in a comment."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from appo_jax import losses


def test_actor_loss_by_hand() -> None:
    # 0.1 * -1 - 2 = -2.1.
    assert losses.actor_loss(jnp.array([-1.0]), jnp.array([2.0]), 0.1) == pytest.approx(-2.1)


@pytest.mark.parametrize(
    ("scores", "label", "expected"),
    [
        # log(1 + e^-2) = 0.12693; the other label adds the margin, a tie half of it.
        ((2.0, 0.0), 1.0, 2.12693),
        ((2.0, 0.0), 0.0, 0.12693),
        ((2.0, 0.0), 0.5, 1.12693),
        ((3.0, 3.0), 0.3, 0.69315),
        # Extremes stay finite: the loss is the margin.
        ((0.0, 1e4), 0.0, 1e4),
        ((0.0, 1e4), 1.0, 0.0),
    ],
)
def test_preference_loss_by_hand(
    scores: tuple[float, float], label: float, expected: float
) -> None:
    found = losses.preference_loss(jnp.array([scores]), jnp.array([label]))
    np.testing.assert_allclose(found, [expected], atol=1e-5)
    swapped = losses.preference_loss(jnp.array([scores[::-1]]), jnp.array([1 - label]))
    np.testing.assert_allclose(swapped, found, atol=1e-5)


def test_is_ordered_by_hand() -> None:
    margin, labels = jnp.array([2.0, -2.0, 0.0, 0.0, 2.0]), jnp.array([1.0, 0.7, 0.0, 0.5, 0.5])
    correct, strict = losses.is_ordered(margin, labels)
    np.testing.assert_array_equal(correct, [True, False, False, True, False])
    np.testing.assert_array_equal(strict, [True, True, True, False, False])


# u = 1, -1, 2 with tau = 0.7: 0.7 * 1, 0.3 * 1, 0.7 * 4; their mean is 3.8 / 3.
DIFFERENCES, OF_EACH = [1.0, -1.0, 2.0], [0.7, 0.3, 2.8]


def test_expectile_loss_by_hand() -> None:
    for difference, expected in zip(DIFFERENCES, OF_EACH, strict=True):
        found = losses.expectile_loss(jnp.array([difference]), 0.7)
        assert found == pytest.approx(expected)
    assert losses.expectile_loss(jnp.array(DIFFERENCES), 0.7) == pytest.approx(1.26667, abs=1e-5)


def test_expectile_of_a_half_is_half_the_squared_error() -> None:
    # (1 + 1 + 4) / 3 / 2 = 1.
    assert losses.expectile_loss(jnp.array(DIFFERENCES), 0.5) == pytest.approx(1.0)


def test_expectile_loss_pushes_harder_where_the_prediction_is_too_low() -> None:
    # d/du = 2 |tau - 1[u < 0]| u / 3: 2 * 0.7 / 3, -2 * 0.3 / 3, 2 * 0.7 * 2 / 3; at 0 it is 0.
    gradient = jax.grad(losses.expectile_loss)(jnp.array(DIFFERENCES), 0.7)
    np.testing.assert_allclose(gradient, [1.4 / 3, -0.6 / 3, 2.8 / 3], rtol=1e-6)
    assert jax.grad(losses.expectile_loss)(jnp.zeros(1), 0.7) == 0


@pytest.mark.parametrize(
    ("advantage", "expected"),
    [
        # beta = 3: exp(1.5), exp(-1.5), exp(0); exp(4.8) = 121.5 is beyond the bound.
        (0.5, 4.48169),
        (-0.5, 0.22313),
        (0.0, 1.0),
        (1.6, 100.0),
        # Extremes: exp overflows to infinity, and underflows to 0.
        (1e4, 100.0),
        (-1e4, 0.0),
    ],
)
def test_advantage_weights_by_hand(advantage: float, expected: float) -> None:
    advantages = jnp.array([advantage])
    found = losses.advantage_weights(advantages, 3.0)
    np.testing.assert_allclose(found, [expected], rtol=1e-5)
    gradient = jax.grad(lambda a: losses.advantage_weights(a, 3.0).sum())(advantages)
    assert gradient == 0  # and not NaN where exp overflows


def test_shapes_that_would_broadcast_raise() -> None:
    one, three = jnp.zeros(1), jnp.zeros(3)
    with pytest.raises(AssertionError):
        losses.actor_loss(three, one, 1.0)
    with pytest.raises(AssertionError):
        losses.actor_loss(three[:, None], three[:, None], 1.0)
    with pytest.raises(AssertionError):
        losses.preference_loss(jnp.zeros((3, 2)), one)
    with pytest.raises(AssertionError):
        losses.expectile_loss(three[:, None], 0.7)
