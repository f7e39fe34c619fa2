"""The learned reward and transition: known answers, an independent optimiser, the rates."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize

from appo_jax.tabular import estimation, generators
from appo_jax.tabular.mdp import MDP, Trajectories, returns

pytestmark = pytest.mark.usefixtures("float64")


def test_kappa_is_the_formula() -> None:
    for bound in (0.5, 1.0, 3.0):
        expected = 2 + np.exp(bound) + np.exp(-bound)
        np.testing.assert_allclose(estimation.link_kappa(bound), expected, rtol=1e-9)


def _two_trajectories(wins: int, losses: int) -> tuple[MDP, Trajectories, jax.Array]:
    """Pairs of two trajectories that differ in the second of two actions alone."""
    mdp = generators.garnet(jax.random.key(0), horizon=2, num_states=2)
    number = wins + losses
    states = jnp.zeros((number, 2, 2), int)
    actions = jnp.broadcast_to(jnp.array([[0, 0], [0, 1]]), (number, 2, 2))
    labels = jnp.array([1.0] * wins + [0.0] * losses)
    return mdp, Trajectories(states=states, actions=actions), labels


def test_reward_by_hand() -> None:
    # 11 of 20 prefer the second: its reward is log(11 / 9) = 0.2007 higher, inside [0, 1/2]. Of
    # all maximisers the one of least norm has 0 for the first, and 0 for all that both share or
    # that nobody visited.
    mdp, pairs, labels = _two_trajectories(11, 9)
    expected = jnp.zeros((2, 2, 2)).at[1, 0, 1].set(jnp.log(11 / 9))
    found = estimation.fit_reward(mdp, pairs, labels)
    np.testing.assert_allclose(found, expected, atol=1e-4)
    np.testing.assert_allclose(found[1, 0, 1] - found[1, 0, 0], jnp.log(11 / 9), atol=1e-6)


def test_reward_stays_in_its_class() -> None:
    # 19 of 20: log 19 = 2.9 is more than a step may earn, R / H = 1/2.
    mdp, pairs, labels = _two_trajectories(19, 1)
    expected = jnp.zeros((2, 2, 2)).at[1, 0, 1].set(0.5)
    np.testing.assert_allclose(estimation.fit_reward(mdp, pairs, labels), expected, atol=1e-4)


@pytest.mark.parametrize("seed", range(3))
def test_reward_against_an_independent_optimiser(seed: int) -> None:
    keys = jax.random.split(jax.random.key(seed), 2)
    mdp = generators.garnet(keys[0])
    reference = generators.mixture_reference(mdp, 0.3)
    data = estimation.collect(mdp, reference, keys[1], 100, 1)

    def loss(reward: jax.Array, ridge: float) -> jax.Array:
        reward = reward.reshape(mdp.reward.shape)
        likelihood = estimation.preference_loss(reward, data.labelled, data.labels)
        return likelihood + ridge / 2 * jnp.sum(reward**2)

    found = estimation.fit_reward(mdp, data.labelled, data.labels)
    assert jnp.all((found >= 0) & (found <= 0.25))
    gradient = jax.jit(jax.value_and_grad(loss))
    # The maximiser of least norm, as the end of a path of falling ridges.
    other = np.full(32, 0.1)
    for ridge in (1e-3, 1e-4, 1e-5, 1e-6):
        result = minimize(
            lambda x, ridge=ridge: tuple(np.asarray(part) for part in gradient(x, ridge)),
            other,
            jac=True,
            bounds=[(0, 0.25)] * 32,
            method="L-BFGS-B",
            options={"ftol": 1e-16, "gtol": 1e-11, "maxiter": 20_000, "maxfun": 40_000},
        )
        other = result.x
    np.testing.assert_allclose(loss(found.ravel(), 0.0), loss(other, 0.0), atol=1e-8)
    assert loss(found.ravel(), 0.0) <= loss(other, 0.0) + 1e-12
    np.testing.assert_allclose(found.ravel(), other, atol=2e-3)


def test_fewer_steps_than_the_default_have_not_converged_yet_and_more_change_nothing() -> None:
    mdp, pairs, labels = _two_trajectories(11, 9)
    found = estimation.fit_reward(mdp, pairs, labels)
    more = estimation.fit_reward(mdp, pairs, labels, num_steps=60)
    np.testing.assert_allclose(found, more, atol=1e-6)
    fewer = estimation.fit_reward(mdp, pairs, labels, num_steps=3)
    assert jnp.max(jnp.abs(fewer - found)) > 1e-3


def test_labels_follow_the_link() -> None:
    mdp, pairs, _ = _two_trajectories(50_000, 50_000)
    reward = jnp.zeros((2, 2, 2)).at[1, 0, 1].set(0.5)
    labels = estimation.preference_labels(reward, pairs, jax.random.key(0))
    # sigmoid(1/2) = 0.6225, to four standard errors of 0.0015.
    assert jnp.mean(labels) == pytest.approx(0.6225, abs=0.006)
    assert set(np.unique(labels)) == {0, 1}


def test_features_give_returns() -> None:
    mdp = generators.garnet(jax.random.key(1))
    policy = generators.mixture_reference(mdp, 0.0)
    pairs = estimation.collect(mdp, policy, jax.random.key(2), 1, 50).unlabelled
    visits = estimation.features(pairs, 4, 2)
    scores = returns(mdp.reward, pairs)
    np.testing.assert_allclose(visits @ mdp.reward.ravel(), scores, atol=1e-9)
    differences = estimation.pair_features(pairs, 4, 2) @ mdp.reward.ravel()
    np.testing.assert_allclose(differences, scores[:, 0] - scores[:, 1], atol=1e-9)


def test_transition_by_hand() -> None:
    mdp = generators.garnet(jax.random.key(0), horizon=3, num_states=2)
    states = jnp.array([[[0, 1, 0], [0, 1, 1]], [[0, 0, 0], [1, 1, 1]]])
    actions = jnp.array([[[0, 1, 0], [0, 1, 1]], [[0, 0, 0], [1, 1, 1]]])
    found = estimation.fit_transition(mdp, Trajectories(states=states, actions=actions))
    np.testing.assert_allclose(found[0, 0, 0], [1 / 3, 2 / 3])
    np.testing.assert_allclose(found[0, 1, 1], [0, 1])
    np.testing.assert_allclose(found[1, 1, 1], [1 / 3, 2 / 3])
    np.testing.assert_allclose(found[1, 0, 0], [1, 0])
    np.testing.assert_allclose(found[0, 0, 1], [0.5, 0.5])  # never seen
    np.testing.assert_allclose(found[2], 0.5)  # nothing comes after the last step


def test_halves_are_disjoint_and_whole() -> None:
    pairs = Trajectories(
        states=jnp.arange(20).reshape(5, 2, 2), actions=jnp.arange(20).reshape(5, 2, 2)
    )
    first, second = estimation.split_half(pairs)
    assert (len(first.states), len(second.states)) == (2, 3)
    np.testing.assert_array_equal(jnp.concatenate([first.states, second.states]), pairs.states)
    np.testing.assert_array_equal(jnp.concatenate([first.actions, second.actions]), pairs.actions)


def test_estimates_approach_the_truth() -> None:
    mdp = generators.garnet(jax.random.key(5))
    reference = generators.mixture_reference(mdp, 0.0)
    data = estimation.collect(mdp, reference, jax.random.key(6), 1, 20_000)
    found = estimation.fit_transition(mdp, data.unlabelled)
    visits = jnp.sum(estimation.transition_counts(mdp, data.unlabelled), axis=-1)
    errors = jnp.sum(jnp.abs(found - mdp.transition), axis=-1)[:-1]
    assert jnp.all(errors * jnp.sqrt(visits[:-1]) < 5)


def test_shapes_must_agree() -> None:
    mdp, pairs, labels = _two_trajectories(1, 1)
    with pytest.raises(AssertionError):
        estimation.fit_reward(mdp, pairs, labels[:1])
