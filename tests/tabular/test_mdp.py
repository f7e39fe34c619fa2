"""Tabular MDPs: identities to 1e-9, known answers, and samples that follow their distribution."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from appo_jax.tabular import generators, mdp
from appo_jax.tabular.mdp import MDP
from tests.helpers.tabular import random_policy

EXACT = 1e-9


pytestmark = pytest.mark.usefixtures("float64")


def _garnet(seed: int) -> tuple[MDP, jax.Array, jax.Array]:
    keys = jax.random.split(jax.random.key(seed), 3)
    found = generators.garnet(keys[0])
    return found, random_policy(keys[1], found), random_policy(keys[2], found)


# Two steps, two states, two actions. From state 0 action 1 leads to state 1 with probability 3/4,
# action 0 stays; the second step pays 1/2 in state 1 for action 0, 1/4 in state 0 for action 1.
HAND = {
    "transition": [
        [[[1, 0], [0.25, 0.75]], [[0, 1], [0, 1]]],
        [[[1, 0], [1, 0]], [[0, 1], [0, 1]]],
    ],
    "reward": [[[0.1, 0], [0, 0]], [[0, 0.25], [0.5, 0]]],
}


def _by_hand() -> MDP:
    arrays = {name: jnp.array(value, float) for name, value in HAND.items()}
    return MDP(initial=jnp.array([1.0, 0.0]), **arrays)


def test_values_by_hand() -> None:
    found = _by_hand()
    uniform = mdp.uniform_policy(found)
    # V_2 = (1/8, 1/4); Q_1(0, .) = (0.1 + 1/8, (1/8 + 3/4) / 4 = 7/32).
    q = mdp.q_values(found, uniform)
    np.testing.assert_allclose(q[0, 0], [0.225, 7 / 32], atol=EXACT)
    np.testing.assert_allclose(mdp.value(found, uniform), (0.225 + 7 / 32) / 2, atol=EXACT)
    # The best: V_2 = (1/4, 1/2), so action 0 is worth 0.35 and action 1 is worth 7/16.
    best = mdp.optimal_policy(found)
    np.testing.assert_array_equal(best[0, 0], [0, 1])
    np.testing.assert_array_equal(best[1], [[0, 1], [1, 0]])
    np.testing.assert_allclose(mdp.value(found, best), 7 / 16, atol=EXACT)


def test_occupancy_and_concentrability_by_hand() -> None:
    found = _by_hand()
    best, uniform = mdp.optimal_policy(found), mdp.uniform_policy(found)
    np.testing.assert_allclose(mdp.occupancy(found, best)[1], [[0, 0.25], [0.75, 0]], atol=EXACT)
    # Uniform reaches state 1 with probability 3/8 and acts there with 1/2: 3/4 over 3/16 is 4; in
    # state 0, 1/4 over 5/16 is less. A trajectory has ratio 2 at each step.
    np.testing.assert_allclose(mdp.step_concentrability(found, best, uniform), 4, atol=EXACT)
    np.testing.assert_allclose(mdp.trajectory_concentrability(found, best, uniform), 4, atol=EXACT)


def test_paths_that_the_mdp_forbids_do_not_count() -> None:
    # In state 1, which the policy never reaches, its action has ratio 100.
    found = _by_hand()
    stay = jnp.array([[[1.0, 0], [1, 0]]] * 2)
    reference = jnp.array([[[0.5, 0.5], [0.01, 0.99]]] * 2)
    ratio = mdp.trajectory_concentrability(found, stay, reference)
    np.testing.assert_allclose(ratio, 4, atol=EXACT)
    never = reference.at[1, 0].set(jnp.array([0.0, 1.0]))
    assert mdp.trajectory_concentrability(found, stay, never) == jnp.inf
    assert mdp.step_concentrability(found, stay, never) == jnp.inf


def test_the_last_step_s_transition_does_not_matter() -> None:
    found, policy, reference = _garnet(0)
    other = found.replace(transition=found.transition.at[-1].set(0.0))
    for function in (mdp.trajectory_concentrability, mdp.step_concentrability):
        expected = function(found, policy, reference)
        np.testing.assert_allclose(function(other, policy, reference), expected, rtol=EXACT)
    np.testing.assert_allclose(mdp.q_values(other, policy), mdp.q_values(found, policy))
    np.testing.assert_allclose(mdp.occupancy(other, policy), mdp.occupancy(found, policy))


@pytest.mark.parametrize("seed", range(5))
def test_performance_difference(seed: int) -> None:
    found, first, second = _garnet(seed)
    difference = mdp.value(found, first) - mdp.value(found, second)
    assert abs(difference) > 1e-3
    np.testing.assert_allclose(
        mdp.performance_difference(found, first, second), difference, atol=EXACT
    )


@pytest.mark.parametrize("seed", range(5))
def test_reward_and_action_values_are_each_others_inverse(seed: int) -> None:
    found, policy, _ = _garnet(seed)
    q = mdp.q_values(found, policy)
    reward = mdp.induced_reward(found.transition, q, policy)
    np.testing.assert_allclose(reward, found.reward, atol=EXACT)
    f = jax.random.uniform(jax.random.key(seed), q.shape)
    induced = found.replace(reward=mdp.induced_reward(found.transition, f, policy))
    np.testing.assert_allclose(mdp.q_values(induced, policy), f, atol=EXACT)


@pytest.mark.parametrize("seed", range(5))
def test_enumeration_agrees_with_dynamic_programming(seed: int) -> None:
    found, policy, reference = _garnet(seed)
    trajectories = mdp.all_trajectories(*found.reward.shape)
    probabilities = mdp.trajectory_probabilities(found, policy, trajectories)
    assert len(probabilities) == 4096
    np.testing.assert_allclose(jnp.sum(probabilities), 1, atol=EXACT)
    expected = probabilities @ mdp.returns(found.reward, trajectories)
    np.testing.assert_allclose(mdp.value(found, policy), expected, atol=EXACT)
    visits = jnp.zeros_like(found.reward)
    for h in range(4):
        cells = trajectories.states[:, h], trajectories.actions[:, h]
        visits = visits.at[h].set(jnp.zeros((4, 2)).at[cells].add(probabilities))
    np.testing.assert_allclose(mdp.occupancy(found, policy), visits, atol=EXACT)
    others = mdp.trajectory_probabilities(found, reference, trajectories)
    ratio = jnp.max(jnp.where(probabilities > 0, probabilities / others, 0))
    c_tr = mdp.trajectory_concentrability(found, policy, reference)
    np.testing.assert_allclose(c_tr, ratio, rtol=EXACT)


def test_step_concentrability_is_at_most_the_trajectories() -> None:
    for seed in range(20):
        found, policy, reference = _garnet(seed)
        c_tr = mdp.trajectory_concentrability(found, policy, reference)
        assert mdp.step_concentrability(found, policy, reference) <= c_tr * (1 + EXACT)


def test_no_policy_is_better_than_the_optimal_one() -> None:
    found, policy, other = _garnet(0)
    best = mdp.value(found, mdp.optimal_policy(found))
    assert best > max(mdp.value(found, policy), mdp.value(found, other)) + 1e-3
    # Changing any single choice can't help.
    for h, s in np.ndindex(4, 4):
        changed = mdp.optimal_policy(found).at[h, s].set(mdp.optimal_policy(found)[h, s, ::-1])
        assert mdp.value(found, changed) <= best + EXACT


def test_samples_follow_their_distribution() -> None:
    found, policy, _ = _garnet(3)
    number = 200_000
    sampled = mdp.sample_trajectories(found, policy, jax.random.key(0), (number,))
    assert sampled.states.shape == (number, 4)
    flat = np.asarray(sampled.states * 2 + sampled.actions) @ np.array([512, 64, 8, 1])
    frequencies = np.bincount(flat, minlength=4096) / number
    trajectories = mdp.all_trajectories(4, 4, 2)
    exact = np.asarray(mdp.trajectory_probabilities(found, policy, trajectories))
    assert np.all(frequencies[exact == 0] == 0)
    errors = (frequencies - exact) / np.sqrt(np.maximum(exact, 1e-12) * (1 - exact) / number)
    assert np.max(np.abs(errors[exact > 1e-4])) < 5  # standard errors
    assert np.std(errors[exact > 1e-4]) == pytest.approx(1, abs=0.15)


def test_shapes_must_agree() -> None:
    found, policy, _ = _garnet(0)
    with pytest.raises(AssertionError):
        mdp.q_values(found, policy[:1])
    with pytest.raises(AssertionError):
        mdp.occupancy(found, policy[..., :1])


FAMILIES = {
    "garnet": lambda key, **sizes: generators.garnet(key, **sizes),
    "chain": lambda _, **sizes: generators.chain(**sizes),
    "lock": lambda key, **sizes: generators.combination_lock(key, **sizes),
    "lure": lambda _, **sizes: generators.lure(**sizes),
}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("sizes", [(4, 4, 2, 1.0), (3, 5, 3, 2.0)])
def test_families_are_mdps(family: str, sizes: tuple[int, int, int, float]) -> None:
    horizon, num_states, num_actions, bound = sizes
    found = FAMILIES[family](
        jax.random.key(0),
        horizon=horizon,
        num_states=num_states,
        num_actions=num_actions,
        bound=bound,
    )
    assert found.transition.shape == (horizon, num_states, num_actions, num_states)
    assert found.reward.shape == (horizon, num_states, num_actions)
    assert found.bound == bound
    assert jnp.all(found.transition >= 0)
    np.testing.assert_allclose(jnp.sum(found.transition, axis=-1), 1, atol=EXACT)
    np.testing.assert_allclose(jnp.sum(found.initial), 1, atol=EXACT)
    assert jnp.all((found.reward >= 0) & (found.reward <= bound / horizon))
    reference = generators.mixture_reference(found, 0.2)
    np.testing.assert_allclose(jnp.sum(reference, axis=-1), 1, atol=EXACT)


def test_what_is_best_in_each_family() -> None:
    lock = generators.combination_lock(jax.random.key(1))
    np.testing.assert_allclose(mdp.value(lock, mdp.optimal_policy(lock)), 0.25, atol=EXACT)
    lure = generators.lure()
    np.testing.assert_array_equal(mdp.optimal_policy(lure)[:, 0], [[1, 0]] * 4)
    np.testing.assert_allclose(mdp.value(lure, mdp.optimal_policy(lure)), 0.6, atol=EXACT)
    chain = generators.chain(horizon=8, slip=0.0)
    # Three steps forward, then five rewards of 1/8.
    np.testing.assert_allclose(mdp.value(chain, mdp.optimal_policy(chain)), 5 / 8, atol=EXACT)


def test_share_of_the_reference_sets_its_concentrability() -> None:
    found = _garnet(2)[0]
    best = mdp.optimal_policy(found)
    for share in (-0.3, 0.0, 0.6):
        reference = generators.mixture_reference(found, share)
        expected = ((1 + share) / 2) ** -4
        c_tr = mdp.trajectory_concentrability(found, best, reference)
        np.testing.assert_allclose(c_tr, expected, rtol=EXACT)
