"""Algorithm 3: who acts when, and how far its estimates are off."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from appo_jax.tabular import generators, policy_evaluation
from appo_jax.tabular.mdp import occupancy, q_values
from tests.helpers.tabular import instance, random_policy

EXACT = 1e-9
pytestmark = pytest.mark.usefixtures("float64")


def test_rollin_policies_by_hand() -> None:
    mu, pi, half = [1.0, 0.0], [0.0, 1.0], [0.5, 0.5]
    reference, policy = jnp.array([[mu]] * 3), jnp.array([[pi]] * 3)
    expected = [[half, pi, pi], [mu, half, pi], [mu, mu, half]]
    found = policy_evaluation.rollin_policies(reference, policy)
    np.testing.assert_array_equal(found[:, :, 0], expected)


def test_rollouts_follow_the_reference_then_both_then_the_policy() -> None:
    # mu stays on the road of the lure, pi leaves it: before h only the road is seen, at h both
    # actions, and all being deterministic the returns are exactly pi's.
    mdp = generators.lure()
    mdp = mdp.replace(reward=jax.random.uniform(jax.random.key(0), (4, 4, 2), minval=0.1) / 4)
    stay, leave = (jnp.broadcast_to(jnp.eye(2)[action], (4, 4, 2)) for action in (0, 1))
    found = policy_evaluation.evaluate(mdp, stay, leave, jax.random.key(1), 100)
    expected = jnp.zeros((4, 4, 2)).at[:, 0].set(q_values(mdp, leave)[:, 0])
    np.testing.assert_allclose(found, expected, atol=EXACT)


def test_squared_error_by_hand() -> None:
    found = instance(8)
    policy = random_policy(jax.random.key(0), found.mdp)
    estimate = q_values(found.mdp, policy).at[2, 1, 0].add(0.1)
    error = policy_evaluation.squared_error(found.mdp, found.reference, policy, estimate)
    weight = jnp.sum(occupancy(found.mdp, found.reference)[2, 1])
    weight = weight * (found.reference[2, 1, 0] + policy[2, 1, 0]) / 2
    np.testing.assert_allclose(error, [0, 0, 0.01 * weight, 0], atol=EXACT)
    assert weight > 0.01


def test_policy_evaluation_is_unbiased_and_its_error_falls_with_the_rollouts() -> None:
    found = instance(8)
    mdp, reference = found.mdp, found.reference
    policy = random_policy(jax.random.key(0), mdp)
    exact = q_values(mdp, policy)
    errors = []
    for num_rollouts in (100, 100_000):
        estimate = policy_evaluation.evaluate(
            mdp, reference, policy, jax.random.key(1), num_rollouts
        )
        errors.append(policy_evaluation.squared_error(mdp, reference, policy, estimate))
        visits = jnp.sum(occupancy(mdp, reference), axis=-1, keepdims=True)
        seen = visits * (reference + policy) / 2 * num_rollouts
        deviation = jnp.abs(estimate - exact) * jnp.sqrt(seen)
        assert jnp.all(jnp.where(seen > 10, deviation, 0) < 0.5)  # about 5 deviations of a return
    assert jnp.sum(errors[1]) < jnp.sum(errors[0]) / 100
    assert jnp.all(estimate[0, 1:] == 0)  # states that no episode starts in
