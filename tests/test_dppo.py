"""DPPO's losses by hand, what a batch holds, and that the policy goes where scores are high.

softplus(x) = log(1 + exp(x)) gives the answers of `pair_loss`.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from appo_jax import dppo, training
from appo_jax.data.dataset import Episode, from_episodes, to_device

close = functools.partial(pytest.approx, rel=1e-4)


@pytest.mark.parametrize(
    ("distances", "lam", "expected"),
    [
        ((0.2, 0.4), 0.5, 0.69315),  # softplus(0), log 2
        ((0.1, 0.3), 1.0, 0.12693),  # softplus(-2)
        ((0.1, 0.3), 0.5, 0.47408),  # softplus(-0.5)
    ],
)
def test_pair_loss_by_hand(distances: Any, lam: float, expected: float) -> None:
    found = dppo.pair_loss(jnp.array(distances), jnp.array([2.0, 1.0]), lam, 0.1)
    assert found == close(expected)
    found = dppo.pair_loss(jnp.array(distances[::-1]), jnp.array([1.0, 2.0]), lam, 0.1)
    assert found == close(expected)


def test_all_pairs_by_their_order_alone() -> None:
    distances, scores = jax.random.uniform(jax.random.key(0), (2, 6))
    loss = functools.partial(dppo.pair_loss, lam=0.5, temperature=0.1)
    expected = float(loss(distances, scores))
    distances, scores = np.asarray(distances), np.asarray(scores)
    order = np.argsort(-scores)
    by_hand = [
        np.log1p(np.exp((distances[i] - 0.5 * distances[j]) / 0.1))
        for better, i in enumerate(order)
        for j in order[better + 1 :]
    ]
    assert len(by_hand) == 6 * 5 / 2
    assert expected == close(np.mean(by_hand))
    permuted = jnp.array([3, 0, 5, 1, 4, 2])
    assert loss(distances[permuted], scores[permuted]) == close(expected)
    assert loss(distances, jnp.exp(5 * scores) - 7) == close(expected)


def test_equal_scores_order_no_pair() -> None:
    distances = jnp.array([0.1, 0.3, 0.9])
    found = dppo.pair_loss(distances, jnp.array([2.0, 1.0, 1.0]), 1.0, 0.1)
    # softplus(-2) and softplus(-8): the pair of the second and the third is none.
    assert found == close((0.126928 + 0.000335) / 2)
    loss = functools.partial(dppo.pair_loss, scores=jnp.zeros(3), lam=1.0, temperature=0.1)
    assert loss(distances) == 0
    assert not jax.grad(loss)(distances).any()


def test_shapes_must_fit() -> None:
    with pytest.raises(AssertionError):
        dppo.pair_loss(jnp.zeros(3), jnp.zeros(2), 1.0, 0.1)
    with pytest.raises(AssertionError):
        dppo.window_distance(jnp.zeros((3, 5, 2)), jnp.zeros((3, 5, 1)))


@pytest.mark.parametrize(
    ("predicted", "action", "expected"),
    [
        (0.0, 1.0, 1.0),  # the root of 4 dimensions times (1 / 2)^2
        (-1.0, 1.0, 2.0),  # the root of 4 times 1
        (0.5, 0.5, 0.0),
    ],
)
def test_distance_by_hand(predicted: float, action: float, expected: float) -> None:
    # Windows are whole: there are no padded rows that a mean would have to leave out.
    found = dppo.window_distance(jnp.full((3, 5, 4), predicted), jnp.full((3, 5, 4), action))
    assert found.shape == (3,)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_the_gradient_is_finite_where_an_action_is_met() -> None:
    actions = jnp.array([[[0.5, 0.5], [1.0, 0.0]]])
    predicted = jnp.array([[[0.5, 0.5], [0.0, 0.0]]])
    gradient = jax.grad(lambda own: dppo.window_distance(own, actions).sum())(predicted)
    # The mean over two steps of |x| / 2: a quarter, towards the action.
    np.testing.assert_allclose(gradient, [[[0, 0], [-0.25, 0]]], rtol=1e-6)


def test_a_batch_holds_whole_windows_and_the_scores_of_their_last_steps(numbered: Any) -> None:
    data = numbered((3, 1, 7, 4))  # row i: observation (i, episode), action and reward above i
    store, view = to_device(data, 3)
    store = store.replace(observations=jnp.asarray(data.observations))
    config = dppo.Config(batch_size=64, segment_length=3)
    sample = jax.jit(dppo.sample, static_argnums=0)
    batch = sample(config, jax.random.key(0), jnp.int32(0), store, view)
    rows = np.asarray(batch.observations[..., 0])
    assert set(rows[:, 0]) == set(data.segment_rows(3))
    np.testing.assert_array_equal(rows, rows[:, :1] + np.arange(3))
    np.testing.assert_array_equal(batch.actions[..., 0], rows + 0.25)
    np.testing.assert_array_equal(batch.scores, rows[:, -1] + 0.5)


def test_the_policy_does_what_high_windows_do() -> None:
    # Half of the episodes have actions of 0.5 and high scores, half of -0.5 and low ones.
    steps = 30
    rng = np.random.default_rng(0)
    episodes = [
        Episode(
            observations=rng.normal(size=(steps + 1, 2)),
            actions=np.full((steps, 1), action),
            rewards=np.full(steps, action),
            terminations=np.zeros(steps, bool),
        )
        for action in (0.5, -0.5, 0.5, -0.5)
    ]
    store, view = to_device(from_episodes(episodes, "two ways"), 4)
    config = dppo.Config(
        hidden_layers=1, hidden_dim=16, batch_size=16, segment_length=4, learning_rate=1e-2
    )
    init = jax.jit(dppo.init, static_argnums=(0, 2, 3))
    state = init(config, jax.random.key(0), 2, 1, lam=jnp.float32(0.5))
    state, metrics = training.train(dppo, config, 200, state, jax.random.key(1), store, view)
    actions = dppo.act(config, state, store.observations)
    assert np.abs(actions - 0.5).mean() < 0.1
    assert metrics["actor/distance"] > 0.2  # half of the windows are at -0.5
