"""Algorithms 1 to 3: the inner problem against a linear program, and the proof's inequalities."""

import math
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tabular_helpers import Instance, instance, linear_program, random_policy, x64

from appo_jax.tabular import (
    adversary,
    analysis,
    appo,
    appo_rollout,
    estimation,
    generators,
    policy_evaluation,
)
from appo_jax.tabular.mdp import (
    mix,
    occupancy,
    optimal_policy,
    q_values,
    returns,
    sample_trajectories,
    step_concentrability,
    trajectory_concentrability,
    uniform_policy,
    value,
)

EXACT = 1e-9


@pytest.fixture(autouse=True)
def _float64() -> Iterator[None]:
    with x64():
        yield


def _problem(found: Instance, policy: jax.Array) -> tuple[adversary.PairTerm, jax.Array, jax.Array]:
    differences = estimation.pair_features(found.pairs, 4, 2)
    term = adversary.pair_term(differences, found.model.reward.ravel())
    cost = appo.advantage_cost(appo.visit_frequencies(found.pairs, 4, 2), policy).ravel()
    return term, cost, appo.reward_operator(found.model.transition, policy)


@pytest.mark.parametrize("lam", [0.3, 2.0, 10.0])
@pytest.mark.parametrize("seed", [0, 1])
def test_inner_problem_against_the_linear_program(seed: int, lam: float) -> None:
    found = instance(seed)
    policy = random_policy(jax.random.key(seed), found.mdp)
    term, cost, operator = _problem(found, policy)
    least, where = linear_program(cost, term.differences, operator, term.rewards, lam, 1.0)
    at_oracle = adversary.objective(term, cost, operator, lam, where)
    np.testing.assert_allclose(at_oracle, least, atol=1e-8)
    begin = adversary.start(term, jnp.full(32, 0.5))
    gaps = []
    for num_steps in (30, 3000):
        state, certificate = adversary.solve(term, cost, operator, lam, 1.0, begin, num_steps)
        assert jnp.all((state.solution >= 0) & (state.solution <= 1))
        gap = adversary.objective(term, cost, operator, lam, state.solution) - least
        # The certificate needs no oracle, and never promises too much.
        assert -1e-9 <= gap <= certificate + 1e-9
        gaps.append((gap, certificate))
    assert gaps[0][0] > 1e-4  # so that the next lines see the solver work
    assert gaps[1][0] < 1e-4
    assert gaps[1][1] < 1e-3


def test_objective_is_the_paper_s() -> None:
    # Line 4 of Algorithm 2, written with loops over the data instead of matrices.
    found = instance(4)
    policy = random_policy(jax.random.key(4), found.mdp)
    f = jax.random.uniform(jax.random.key(5), policy.shape)
    term, cost, operator = _problem(found, policy)
    states, actions = np.asarray(found.pairs.states), np.asarray(found.pairs.actions)
    table, values = np.asarray(f), np.asarray(mix(f, policy))
    transition, rewards = np.asarray(found.model.transition), np.asarray(found.model.reward)
    advantage, deviation = 0.0, 0.0
    for pair in range(len(states)):
        sums = []
        for side in range(2):
            total = 0.0
            for h in range(4):
                s, a = states[pair, side, h], actions[pair, side, h]
                advantage += (values[h, s] - table[h, s, a]) / (2 * len(states))
                ahead = transition[h, s, a] @ values[h + 1] if h < 3 else 0.0
                total += table[h, s, a] - ahead - rewards[h, s, a]
            sums.append(total)
        deviation += abs(sums[0] - sums[1]) / len(states)
    objective = adversary.objective(term, cost, operator, 3.0, f.ravel())
    np.testing.assert_allclose(objective, advantage + 3 * deviation, atol=EXACT)


def test_policy_update_by_hand() -> None:
    # (1/4, 3/4) tilted by exp(eta f) with eta = log 3, f = (1, 0): 3/4 to 3/4.
    found = appo.improve(jnp.log(jnp.array([0.25, 0.75])), math.log(3), jnp.array([1.0, 0.0]))
    np.testing.assert_allclose(jnp.exp(found), [0.5, 0.5], atol=EXACT)
    assert appo.step_size(2.0, 2, 50) == pytest.approx(math.sqrt(2 * math.log(2) / 200))
    far = appo.improve(jnp.log(jnp.array([0.5, 0.5])), 1e4, jnp.array([1.0, 0.0]))
    assert jnp.all(jnp.isfinite(far))


@pytest.fixture(scope="module")
def runs() -> dict[int, tuple[Instance, float, appo.Run]]:
    made = {}
    with x64():
        for seed in range(4):
            found = instance(seed)
            lam = 1.5 * float(found.concentrability)
            run = appo.optimise(found.model, found.pairs, lam, num_iterations=40, num_steps=10)
            made[seed] = (found, lam, run)
    return made


def test_first_policy_is_uniform_and_f_stays_in_its_class(
    runs: dict[int, tuple[Instance, float, appo.Run]],
) -> None:
    for found, _, run in runs.values():
        np.testing.assert_allclose(run.policies[0], uniform_policy(found.mdp), atol=EXACT)
        assert jnp.all((run.answers >= 0) & (run.answers <= 1))
        expected = run.policies[:-1] * jnp.exp(appo.step_size(1.0, 2, 40) * run.answers[:-1])
        expected = expected / jnp.sum(expected, axis=-1, keepdims=True)
        np.testing.assert_allclose(run.policies[1:], expected, atol=EXACT)
        assert jnp.max(run.gaps) < 0.01


def test_decomposition_adds_up(runs: dict[int, tuple[Instance, float, appo.Run]]) -> None:
    for found, _, run in runs.values():
        rewards = analysis.induced_rewards(found.mdp, run)
        parts = analysis.decompose(
            found.mdp, found.optimal, found.reference, found.model.reward, rewards, run.policies
        )
        total = parts.mle + parts.optimisation + parts.regret
        np.testing.assert_allclose(total, parts.suboptimality, atol=EXACT)
        best = value(found.mdp, found.optimal)
        mixture = appo.mixture_value(found.mdp, run.policies)
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
    found: Instance, lam: float, run: appo.Run
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


def test_optimisation_error_is_bounded(
    runs: dict[int, tuple[Instance, float, appo.Run]],
) -> None:
    for found, lam, run in runs.values():
        optimisation, bound, slack = _optimisation_error(found, lam, run)
        np.testing.assert_allclose(optimisation - bound, slack, atol=EXACT)
        assert jnp.all(slack <= EXACT)


def test_optimisation_error_breaks_its_bound_where_lambda_is_too_small(
    runs: dict[int, tuple[Instance, float, appo.Run]],
) -> None:
    found, lam, _ = runs[0]
    lam = lam / 50  # 0.03 C_TR
    run = appo.optimise(found.model, found.pairs, lam, num_iterations=40, num_steps=10)
    optimisation, bound, slack = _optimisation_error(found, lam, run)
    np.testing.assert_allclose(optimisation - bound, slack, atol=EXACT)
    assert jnp.max(slack) > 0.01


HOEFFDING = 5 / 8  # of `regret_bound`


def test_regret_bound_on_every_run(runs: dict[int, tuple[Instance, float, appo.Run]]) -> None:
    bound = analysis.regret_bound(1.0, 4, 2, 40)
    assert bound == pytest.approx(4 * math.sqrt(80 * math.log(2)))
    for found, _, run in runs.values():
        regret = jnp.sum(analysis.estimated_regret(found.mdp, found.optimal, run))
        assert regret <= HOEFFDING * bound


def _constant_regret(num_iterations: int) -> float:
    """Summed over t, for each h, where f favours one of two actions by R = 1 throughout.

    pi^t gives the other action 1 / (1 + exp(eta (t - 1))).
    """
    eta = appo.step_size(1.0, 2, num_iterations)
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
        log_policy = appo.improve(log_policy, appo.step_size(1.0, 2, 5), f)
    answers = jnp.stack([f] * 5)
    run = appo.Run(jnp.stack(policies), answers, answers, jnp.zeros(5))
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


def test_more_labels_and_iterations_find_a_better_policy() -> None:
    def suboptimality(num_labelled: int, num_iterations: int) -> float:
        total = 0.0
        for seed in range(3):
            found = instance(seed, num_labelled)
            lam = 1.5 * found.concentrability
            run = appo.optimise(found.model, found.pairs, lam, num_iterations=num_iterations)
            best = value(found.mdp, found.optimal)
            total += float(best - appo.mixture_value(found.mdp, run.policies)) / 3
        return total

    much = suboptimality(2000, 256)
    assert much < suboptimality(50, 256) - 0.01
    assert much < suboptimality(2000, 10) - 0.01


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
    run = appo.optimise(model, second, lam, num_iterations=256)
    assert appo.mixture_value(mdp, run.policies) > 0.45
    trusting = appo.optimise(model, second, 100 * lam, num_iterations=256)
    assert appo.mixture_value(mdp, trusting.policies) < 0.3


# Algorithms 1 and 3.


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
    term, _, _ = _problem(found, uniform_policy(found.mdp))
    frequencies = appo.visit_frequencies(found.pairs, 4, 2)
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
    expected = run.policies[:-1] * jnp.exp(appo.step_size(1.0, 2, 30) * run.scores[:-1])
    expected = expected / jnp.sum(expected, axis=-1, keepdims=True)
    np.testing.assert_allclose(run.policies[1:], expected, atol=EXACT)
    assert jnp.mean(parts.suboptimality[-5:]) < parts.suboptimality[0]
