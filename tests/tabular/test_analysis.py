"""The proof's inequalities on runs of Algorithm 2."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from appo_jax.tabular import analysis, appo_with_model, generators
from appo_jax.tabular.mdp import optimal_policy, returns, sample_trajectories, uniform_policy, value
from tests.helpers.tabular import Instance, Runs, instance

EXACT = 1e-9
HOEFFDING = 5 / 8  # of `regret_bound`
pytestmark = pytest.mark.usefixtures("float64")


def test_decomposition_adds_up(runs: Runs) -> None:
    for found, _, run in runs.values():
        rewards = analysis.induced_rewards(found.mdp, run)
        parts = analysis.decompose(
            found.mdp, found.optimal, found.reference, found.model.reward, rewards, run.policies
        )
        total = parts.mle + parts.optimisation + parts.regret
        np.testing.assert_allclose(total, parts.suboptimality, atol=EXACT)
        best = value(found.mdp, found.optimal)
        mixture = appo_with_model.mixture_value(found.mdp, run.policies)
        np.testing.assert_allclose(jnp.mean(parts.suboptimality), best - mixture, atol=EXACT)
        # No term is idle.
        for term in (parts.mle, jnp.mean(parts.optimisation), jnp.mean(parts.regret)):
            assert abs(term) > 1e-3
        # Each as the paper writes it, by differences of values.
        t = 17
        policy, mdp = run.policies[t], found.mdp
        wrong = mdp.replace(reward=mdp.reward - found.model.reward)
        mle = value(wrong, found.optimal) - value(wrong, found.reference)
        np.testing.assert_allclose(parts.mle, mle, atol=EXACT)
        pessimistic = mdp.replace(reward=rewards[t])
        regret = value(pessimistic, found.optimal) - value(pessimistic, policy)
        np.testing.assert_allclose(parts.regret[t], regret, atol=EXACT)
        estimated = analysis.estimated_regret(mdp, found.optimal, run)[t]
        np.testing.assert_allclose(estimated, regret, atol=EXACT)


def _optimisation_error(
    found: Instance, lam: float, run: appo_with_model.Run
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """(II), lambda E(Q^pi; P*, r_hat) + gap, and their difference as the proof has it, each `[4]`.

    The gap is checked against L_opt by values: V^pi_r - V^mu_r + lambda E(r; r_hat).
    """
    mdp, reference, learned = found.mdp, found.reference, found.model.reward
    rewards = analysis.induced_rewards(mdp, run)
    parts = analysis.decompose(mdp, found.optimal, reference, learned, rewards, run.policies)
    error = analysis.pair_loss(mdp, reference, mdp.reward, learned)
    bounds, slacks = [], []
    for t in range(0, 40, 10):
        policy, reward = run.policies[t], rewards[t]

        def loss(reward: jax.Array, policy: jax.Array = policy) -> jax.Array:
            other = mdp.replace(reward=reward)
            deviation = analysis.pair_loss(mdp, reference, reward, learned)
            return value(other, policy) - value(other, reference) + lam * deviation

        gap = analysis.optimisation_gap(mdp, reference, learned, lam, run.answers[t], policy)
        np.testing.assert_allclose(gap, loss(reward) - loss(mdp.reward), atol=EXACT)
        bounds.append(lam * error + gap)
        missing = mdp.replace(reward=learned - reward)
        advantage = value(missing, found.optimal) - value(missing, reference)
        slacks.append(advantage - lam * analysis.pair_loss(mdp, reference, reward, learned))
    return parts.optimisation[::10], jnp.array(bounds), jnp.array(slacks)


def test_optimisation_error_is_bounded(runs: Runs) -> None:
    for found, lam, run in runs.values():
        optimisation, bound, slack = _optimisation_error(found, lam, run)
        np.testing.assert_allclose(optimisation - bound, slack, atol=EXACT)
        assert jnp.all(slack <= EXACT)


def test_optimisation_error_breaks_its_bound_where_lambda_is_too_small(runs: Runs) -> None:
    found, lam, _ = runs[0]
    lam = lam / 50  # 0.03 C_TR
    run = appo_with_model.optimise(found.model, found.pairs, lam, num_iterations=40, num_steps=10)
    optimisation, bound, slack = _optimisation_error(found, lam, run)
    np.testing.assert_allclose(optimisation - bound, slack, atol=EXACT)
    assert jnp.max(slack) > 0.01


def test_regret_bound_on_every_run(runs: Runs) -> None:
    bound = analysis.regret_bound(1.0, 4, 2, 40)
    assert bound == pytest.approx(4 * math.sqrt(80 * math.log(2)))
    for found, _, run in runs.values():
        regret = jnp.sum(analysis.estimated_regret(found.mdp, found.optimal, run))
        assert regret <= HOEFFDING * bound


def _constant_regret(num_iterations: int) -> float:
    """Summed over t, for each h, where f favours one of two actions by R = 1 throughout.

    pi^t gives the other action 1 / (1 + exp(eta (t - 1))).
    """
    eta = appo_with_model.step_size(1.0, 2, num_iterations)
    return float(np.sum(1 / (1 + np.exp(eta * np.arange(num_iterations)))))


@pytest.mark.parametrize("horizon", [1, 5])
@pytest.mark.parametrize("num_iterations", [2, 5, 100, 10_000])
def test_regret_bound_is_nearly_reached(num_iterations: int, horizon: int) -> None:
    ratio = horizon * _constant_regret(num_iterations)
    ratio /= analysis.regret_bound(1.0, horizon, 2, num_iterations)
    assert 0.45 < ratio <= HOEFFDING


def test_an_instance_breaks_the_printed_regret_bound() -> None:
    horizon = 3
    mdp = generators.garnet(jax.random.key(0), horizon=horizon)
    f = jnp.zeros((horizon, 4, 2)).at[..., 1].set(1.0)
    mdp = mdp.replace(reward=f / horizon)
    log_policy, policies = jnp.log(uniform_policy(mdp)), []
    for _ in range(5):
        policies.append(jnp.exp(log_policy))
        log_policy = appo_with_model.improve(log_policy, appo_with_model.step_size(1.0, 2, 5), f)
    answers = jnp.stack([f] * 5)
    run = appo_with_model.Run(jnp.stack(policies), answers, answers, jnp.zeros(5), jnp.ones(5))
    optimal = optimal_policy(mdp)
    rewards = analysis.induced_rewards(mdp, run)
    parts = analysis.decompose(mdp, optimal, uniform_policy(mdp), f, rewards, run.policies)
    regret = float(jnp.sum(parts.regret))
    assert regret == pytest.approx(horizon * _constant_regret(5))
    assert regret == pytest.approx(1.409 * horizon, abs=1e-3 * horizon)
    printed = horizon * math.sqrt(5 * math.log(2) / 2)
    assert printed < regret <= HOEFFDING * analysis.regret_bound(1.0, horizon, 2, 5)


def test_pair_loss_is_the_mean_over_pairs() -> None:
    found = instance(6)
    mdp, other = found.mdp, found.model.reward
    pairs = sample_trajectories(mdp, found.reference, jax.random.key(0), (200_000, 2))
    scores = returns(mdp.reward - other, pairs)
    sampled = jnp.abs(scores[:, 0] - scores[:, 1])
    exact = analysis.pair_loss(mdp, found.reference, mdp.reward, other)
    assert exact == pytest.approx(float(jnp.mean(sampled)), abs=4 * float(jnp.std(sampled)) / 447)
    shifted = mdp.reward.at[0].add(0.3)
    np.testing.assert_allclose(
        analysis.pair_loss(mdp, found.reference, shifted, other), exact, atol=EXACT
    )
