"""Known answers of APPO's own losses, each derived in a comment."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from appo_jax import appo

# Two segments of two steps. Segment 0: (1 - 0.5*3 - 0.1) + (2 - 0.5*4 - 0.2) = -0.6 - 0.2 = -0.8.
# Segment 1: (0 - 0.5*1 - 0) + (1 - 0.5*1 - 0) = -0.5 + 0.5 = 0. So E = |-0.8 - 0| = 0.8.
Q = jnp.array([[[1.0, 2.0], [0.0, 1.0]]])
NEXT_VALUES = jnp.array([[[3.0, 4.0], [1.0, 1.0]]])
REWARDS = jnp.array([[[0.1, 0.2], [0.0, 0.0]]])
DISCOUNTS = jnp.full((1, 2, 2), 0.5)


def test_pair_error_by_hand() -> None:
    assert appo.pair_error(Q, NEXT_VALUES, REWARDS, DISCOUNTS) == pytest.approx(0.8)


def test_pair_error_is_a_mean_over_pairs() -> None:
    # The second pair's segments are equal, so its error is 0 and the mean halves.
    stacked = [jnp.concatenate([a, jnp.ones_like(a)]) for a in (Q, NEXT_VALUES, REWARDS, DISCOUNTS)]
    assert appo.pair_error(*stacked) == pytest.approx(0.4)


def test_critic_loss_by_hand() -> None:
    # L_adv = 2 - 5 = -3; 0.03 * -3 + 0.8 = 0.71.
    adversarial = appo.adversarial_loss(jnp.array([2.0]), jnp.array([5.0]))
    error = appo.pair_error(Q, NEXT_VALUES, REWARDS, DISCOUNTS)
    assert adversarial == pytest.approx(-3.0)
    assert appo.critic_loss(0.03, adversarial, error) == pytest.approx(0.71)


@pytest.mark.parametrize("shift", [-3.0, 100.0])
def test_levels_of_q_and_v_cancel(shift: float) -> None:
    error = appo.pair_error(Q, NEXT_VALUES, REWARDS, DISCOUNTS)
    for q, next_values in ((Q + shift, NEXT_VALUES), (Q, NEXT_VALUES + shift)):
        found = appo.pair_error(q, next_values, REWARDS, DISCOUNTS)
        np.testing.assert_allclose(found, error, atol=1e-4)
    q = jnp.array([2.0, 4.0])
    shifted = appo.adversarial_loss(q + shift, 2 * q + shift)
    np.testing.assert_allclose(shifted, appo.adversarial_loss(q, 2 * q), atol=1e-4)


def test_swapping_the_segments_changes_nothing() -> None:
    swapped = [a[:, ::-1] for a in (Q, NEXT_VALUES, REWARDS, DISCOUNTS)]
    assert appo.pair_error(*swapped) == pytest.approx(0.8)


def test_a_termination_cuts_the_bootstrap_and_the_cancellation() -> None:
    # With a discount of 0 at segment 0's last step its sum is -0.6 + (2 - 0 - 0.2) = 1.2.
    discounts = DISCOUNTS.at[0, 0, 1].set(0.0)
    assert appo.pair_error(Q, NEXT_VALUES, REWARDS, discounts) == pytest.approx(1.2)
    assert appo.pair_error(Q, NEXT_VALUES + 1, REWARDS, discounts) != pytest.approx(1.2)


def test_segment_error_by_hand() -> None:
    # (|-0.8| + |0|) / 2 = 0.4.
    assert appo.segment_error(Q, NEXT_VALUES, REWARDS, DISCOUNTS) == pytest.approx(0.4)


def test_squared_errors_by_hand() -> None:
    # The sums are -0.8 and 0: (-0.8 - 0)^2 = 0.64, and (0.64 + 0) / 2 = 0.32.
    arguments = (Q, NEXT_VALUES, REWARDS, DISCOUNTS, True)
    assert appo.pair_error(*arguments) == pytest.approx(0.64)
    assert appo.segment_error(*arguments) == pytest.approx(0.32)


@pytest.mark.parametrize("squared", [False, True])
def test_a_square_presses_the_more_the_larger_the_error(squared: bool) -> None:
    # dE/dQ is the sign of -0.8 for each step of segment 0, and its opposite for those of segment 1;
    # of the square it is 2 * -0.8.
    slope = 1.6 if squared else 1.0
    found = jax.grad(appo.pair_error)(Q, NEXT_VALUES, REWARDS, DISCOUNTS, squared)
    np.testing.assert_allclose(found, slope * np.array([[[-1, -1], [1, 1]]]), rtol=1e-6)


def test_pairs_do_not_tell_what_a_step_is_worth() -> None:
    """They are the same for every r_hat + c, terminations or not; single segments are not."""
    discounts = DISCOUNTS.at[0, 0, 1].set(0.0)
    for shift in (-1.0, 3.0):
        pairs = appo.pair_error(Q, NEXT_VALUES, REWARDS + shift, discounts)
        assert pairs == pytest.approx(1.2, abs=1e-5)
    # Sums 1.2 - 2 * 3 and 0 - 2 * 3: (4.8 + 6) / 2 = 5.4.
    segments = appo.segment_error(Q, NEXT_VALUES, REWARDS + 3, discounts)
    assert segments == pytest.approx(5.4, abs=1e-5)


def test_steps_behind_the_end_count_nothing() -> None:
    # Of segment 0 the first step alone is left, -0.6: E = |-0.6 - 0|, and (|-0.6| + |0|) / 2.
    is_step = jnp.array([[[True, False], [True, True]]])
    behind = [array.at[0, 0, 1].set(9.0) for array in (Q, NEXT_VALUES, REWARDS, DISCOUNTS)]
    for error, expected in ((appo.pair_error, 0.6), (appo.segment_error, 0.3)):
        assert error(*behind, is_step=is_step) == pytest.approx(expected)
        gradient = jax.grad(error)(*behind, is_step=is_step)
        np.testing.assert_array_equal(gradient[0, 0] != 0, [True, False])
        with pytest.raises(AssertionError):
            error(*behind, is_step=is_step[..., :1])


def test_value_loss_by_hand() -> None:
    # Targets are min(2, 1) = 1 and min(3, 5) = 3; ((1 - 1)^2 + (2 - 3)^2) / 2 = 0.5.
    values, target_q = jnp.array([1.0, 2.0]), jnp.array([[2.0, 3.0], [1.0, 5.0]])
    assert appo.value_loss(values, target_q) == pytest.approx(0.5)
    assert not jax.grad(appo.value_loss, argnums=1)(values, target_q).any()
    # d/dV of the mean is (V - target): 0 and -1.
    np.testing.assert_allclose(jax.grad(appo.value_loss)(values, target_q), [0.0, -1.0])


@pytest.mark.parametrize(("log_prob", "rises"), [(5.0, True), (3.0, False)])
def test_temperature_rises_where_entropy_is_below_its_target(log_prob: float, rises: bool) -> None:
    # Target entropy -4; the entropies are -5 (below it) and -3 (above it). Descent moves against
    # the gradient.
    gradient = jax.grad(appo.temperature_loss)(jnp.float32(0.0), jnp.array([log_prob]), -4.0)
    assert (gradient < 0) == rises
    to_log_probs = jax.grad(appo.temperature_loss, argnums=1)(
        jnp.float32(0.0), jnp.array([log_prob]), -4.0
    )
    assert not to_log_probs.any()


def test_lambda_rises_while_the_adversarial_loss_is_above_its_target() -> None:
    # Descent moves against the gradient, target minus L_adv: 0.1 - 0.3.
    gradients = jax.grad(appo.dual_loss, argnums=(0, 1))(jnp.float32(0), jnp.float32(0.3), 0.1)
    assert gradients == (pytest.approx(-0.2), 0)


def test_shapes_that_would_broadcast_raise() -> None:
    one, three = jnp.zeros(1), jnp.zeros(3)
    with pytest.raises(AssertionError):
        appo.adversarial_loss(one, three)
    with pytest.raises(AssertionError):
        appo.adversarial_loss(three, three[:, None])
    for error in (appo.pair_error, appo.segment_error):
        with pytest.raises(AssertionError):
            error(Q, NEXT_VALUES[..., :1], REWARDS, DISCOUNTS)
        with pytest.raises(AssertionError):
            error(Q[:, :1], NEXT_VALUES[:, :1], REWARDS[:, :1], DISCOUNTS[:, :1])
    with pytest.raises(AssertionError):
        appo.value_loss(three[:, None], jnp.zeros((2, 3)))
    with pytest.raises(AssertionError):
        appo.temperature_loss(one, three, -4.0)
