"""Algorithm 2: its updates, and what the policies come to."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from appo_jax.tabular import appo_with_model, estimation, generators
from appo_jax.tabular.mdp import optimal_policy, trajectory_concentrability, uniform_policy, value
from tests.helpers.tabular import Runs, instance

EXACT = 1e-9
pytestmark = pytest.mark.usefixtures("float64")


def test_policy_update_by_hand() -> None:
    # (1/4, 3/4) tilted by exp(eta f) with eta = log 3, f = (1, 0): 3/4 to 3/4.
    found = appo_with_model.improve(
        jnp.log(jnp.array([0.25, 0.75])), math.log(3), jnp.array([1.0, 0.0])
    )
    np.testing.assert_allclose(jnp.exp(found), [0.5, 0.5], atol=EXACT)
    assert appo_with_model.step_size(2.0, 2, 50) == pytest.approx(math.sqrt(2 * math.log(2) / 200))
    far = appo_with_model.improve(jnp.log(jnp.array([0.5, 0.5])), 1e4, jnp.array([1.0, 0.0]))
    assert jnp.all(jnp.isfinite(far))


def test_first_policy_is_uniform_and_f_stays_in_its_class(runs: Runs) -> None:
    for found, _, run in runs.values():
        np.testing.assert_allclose(run.policies[0], uniform_policy(found.mdp), atol=EXACT)
        assert jnp.all((run.answers >= 0) & (run.answers <= 1))
        expected = run.policies[:-1] * jnp.exp(
            appo_with_model.step_size(1.0, 2, 40) * run.answers[:-1]
        )
        expected = expected / jnp.sum(expected, axis=-1, keepdims=True)
        np.testing.assert_allclose(run.policies[1:], expected, atol=EXACT)
        assert jnp.max(run.gaps) < 0.01


@pytest.mark.slow
def test_more_labels_and_iterations_find_a_better_policy() -> None:
    def suboptimality(num_labelled: int, num_iterations: int) -> float:
        total = 0.0
        for seed in range(3):
            found = instance(seed, num_labelled)
            lam = 1.5 * found.concentrability
            run = appo_with_model.optimise(
                found.model, found.pairs, lam, num_iterations=num_iterations
            )
            best = value(found.mdp, found.optimal)
            total += float(best - appo_with_model.mixture_value(found.mdp, run.policies)) / 3
        return total

    much = suboptimality(2000, 256)
    assert much < suboptimality(50, 256) - 0.01
    assert much < suboptimality(2000, 10) - 0.01


def test_an_adapting_lambda_by_hand() -> None:
    found = instance(0, 50)
    run = appo_with_model.optimise(found.model, found.pairs, 2.0, num_iterations=20, dual_rate=0.5)
    frequencies = appo_with_model.visit_frequencies(found.pairs, *found.mdp.reward.shape[1:])
    costs = jax.vmap(appo_with_model.advantage_cost, (None, 0))(frequencies, run.policies)
    advantages = np.sum(costs * run.answers, axis=(1, 2, 3))
    assert np.abs(advantages).min() > 1e-3
    np.testing.assert_allclose(run.lams[0], 2)
    expected = np.minimum(run.lams * np.exp(-0.5 * advantages), 2)
    np.testing.assert_allclose(run.lams[1:], expected[:-1])
    assert (run.lams[1:] == 2).any()
    assert (run.lams < 1.9).any()
    fixed = appo_with_model.optimise(found.model, found.pairs, 2.0, num_iterations=20)
    np.testing.assert_array_equal(fixed.lams, np.full(20, 2.0))
    assert not np.allclose(fixed.policies, run.policies)


def test_pessimism_leaves_the_lure_alone() -> None:
    # Say that the few labels that show the exit at the first step (of 100 pairs about four) favour
    # it: the learned reward sends greedy there, the adversary sees that the data hardly support it.
    mdp = generators.lure()
    reference = jnp.full((4, 4, 2), 0.5).at[:, 0].set(jnp.array([0.98, 0.02]))
    data = estimation.collect(mdp, reference, jax.random.key(1), 100, 1000)
    first, second = estimation.split_half(data.unlabelled)
    wrong = mdp.reward.at[0, 0, 1].set(0.25).at[1:, 1].set(0.25)
    model = mdp.replace(reward=wrong, transition=estimation.fit_transition(mdp, first))
    assert value(mdp, optimal_policy(model)) < 0.1
    lam = 1.5 * trajectory_concentrability(mdp, optimal_policy(mdp), reference)
    run = appo_with_model.optimise(model, second, lam, num_iterations=256)
    assert appo_with_model.mixture_value(mdp, run.policies) > 0.45
    trusting = appo_with_model.optimise(model, second, 100 * lam, num_iterations=256)
    assert appo_with_model.mixture_value(mdp, trusting.policies) < 0.3
