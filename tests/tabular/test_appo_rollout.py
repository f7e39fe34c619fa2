"""Algorithm 1: its answers against a linear program, and the proof's terms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from appo_jax.tabular import adversary, analysis, appo_rollout, appo_with_model, policy_evaluation
from appo_jax.tabular.mdp import occupancy, q_values, step_concentrability, uniform_policy
from tests.helpers.tabular import inner_problem, instance, linear_program

EXACT = 1e-9
HOEFFDING = 5 / 8  # of `regret_bound`
pytestmark = pytest.mark.usefixtures("float64")


def test_algorithm_1_answers_the_linear_program() -> None:
    # With many rollouts the cost of line 5 is that of pi^t's occupancy, which changes with t.
    found = instance(2)
    lam, num_iterations = 0.2, 4
    run = appo_rollout.optimise(
        found.mdp,
        found.model.reward,
        found.reference,
        found.pairs,
        lam,
        jax.random.key(0),
        num_iterations=num_iterations,
        num_rollouts=20_000,
        num_evaluations=1000,
        num_steps=1000,
    )
    term, _, _ = inner_problem(found, uniform_policy(found.mdp))
    frequencies = appo_with_model.visit_frequencies(found.pairs, 4, 2)
    identity = jnp.eye(32)
    gaps = np.zeros((num_iterations, num_iterations))  # of r^t at the cost of pi^u
    for u in range(num_iterations):
        cost = (occupancy(found.mdp, run.policies[u]) - frequencies).ravel()
        least, _ = linear_program(cost, term.differences, identity, term.rewards, lam, 0.25)
        for t in range(num_iterations):
            answer = run.answers[t].ravel()
            gaps[t, u] = adversary.objective(term, cost, identity, lam, answer) - least
    assert jnp.all((run.answers >= 0) & (run.answers <= 0.25))
    assert np.all(gaps > -EXACT)
    assert np.all(np.diagonal(gaps) < 0.002)
    assert gaps[0, -1] > 0.01
    assert gaps[-1, 0] > 0.01


def test_algorithm_1_decomposition_and_regret() -> None:
    found = instance(2)
    lam = 0.2  # so that r^t moves away from r_hat
    run = appo_rollout.optimise(
        found.mdp.replace(reward=jnp.full_like(found.mdp.reward, jnp.nan)),
        found.model.reward,
        found.reference,
        found.pairs,
        lam,
        jax.random.key(0),
        num_iterations=30,
        num_rollouts=100,
        num_evaluations=200,
    )
    assert jnp.all((run.answers >= 0) & (run.answers <= 0.25))
    parts = analysis.decompose(
        found.mdp, found.optimal, found.reference, found.model.reward, run.answers, run.policies
    )
    total = parts.mle + parts.optimisation + parts.regret
    np.testing.assert_allclose(total, parts.suboptimality, atol=EXACT)
    estimated = analysis.estimated_regret(found.mdp, found.optimal, run)
    assert jnp.sum(estimated) <= HOEFFDING * analysis.regret_bound(1.0, 4, 2, 30)
    # What separates it from (III) is PE's error alone.
    exact = jax.vmap(lambda r, policy: q_values(found.mdp.replace(reward=r), policy))(
        run.answers, run.policies
    )
    states = jnp.sum(occupancy(found.mdp, found.optimal), axis=-1, keepdims=True)
    error = states * (exact - run.scores) * (found.optimal - run.policies)
    error = jnp.sum(error, axis=(1, 2, 3))
    np.testing.assert_allclose(parts.regret, estimated + error, atol=EXACT)
    assert jnp.max(jnp.abs(error)) > 1e-3

    def squared_errors(rewards: jax.Array) -> jax.Array:
        return jax.vmap(
            lambda r, policy, scores: policy_evaluation.squared_error(
                found.mdp.replace(reward=r), found.reference, policy, scores
            )
        )(rewards, run.policies, run.scores)

    squared = squared_errors(run.answers)
    c_st = step_concentrability(found.mdp, found.optimal, found.reference)
    assert jnp.all(jnp.abs(error) <= 2 * jnp.sum(jnp.sqrt(2 * c_st * squared), axis=-1))
    # What is evaluated is r^t, not r_hat.
    learned = jnp.broadcast_to(found.model.reward, run.answers.shape)
    assert jnp.mean(squared) < jnp.mean(squared_errors(learned)) / 2
    # The update looked at the estimates.
    expected = run.policies[:-1] * jnp.exp(appo_with_model.step_size(1.0, 2, 30) * run.scores[:-1])
    expected = expected / jnp.sum(expected, axis=-1, keepdims=True)
    np.testing.assert_allclose(run.policies[1:], expected, atol=EXACT)
    assert jnp.mean(parts.suboptimality[-5:]) < parts.suboptimality[0]
