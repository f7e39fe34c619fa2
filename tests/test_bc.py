"""Behaviour cloning: what is cloned, and what a tie, a soft label and a strict one count."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from appo_jax import bc, training
from appo_jax.data.dataset import Episode, from_episodes, to_device, with_pairs
from appo_jax.types import LabelledPairs

LENGTH, STEPS = 5, 40
PAIRS = [[0, 10], [20, 30]]  # the steps at which labelled segments start


def store_of_steps(labels: list[float]) -> Any:
    """One episode whose observations are step numbers; actions rise from -0.8 to 0.76."""
    episode = Episode(
        observations=np.arange(STEPS + 1.0)[:, None],
        actions=np.arange(STEPS)[:, None] / 25 - 0.8,
        rewards=np.zeros(STEPS),
        terminations=np.zeros(STEPS, bool),
    )
    data = from_episodes([episode], "steps")
    store, view = to_device(data, LENGTH)
    store = store.replace(observations=jnp.asarray(data.observations))
    pairs = LabelledPairs(jnp.array(PAIRS, jnp.int32), jnp.array(labels), LENGTH)
    store, (view,) = with_pairs(store, [view], [pairs])
    return store, view


def cloned(config: bc.Config, labels: list[float]) -> dict[int, float]:
    """The steps in the batches of 100 updates with their weights."""
    store, view = store_of_steps(labels)
    sample = functools.partial(bc.sample, config, jax.random.key(0), store=store, view=view)
    batch = jax.jit(jax.vmap(sample))(step=jnp.arange(100))
    steps = np.asarray(batch.transitions.observations).ravel().astype(int).tolist()
    weights = np.round(np.asarray(batch.weights, float).ravel(), 6).tolist()
    found = dict(zip(steps, weights, strict=True))
    assert all(found[step] == weight for step, weight in zip(steps, weights, strict=True))
    return found


PREFERRED = bc.Config(batch_size=8, segment_length=LENGTH)


def test_strict_labels_clone_every_step_of_the_preferred_segment() -> None:
    found = cloned(PREFERRED, [1.0, 0.0])
    assert found == {step: 1 for start in (10, 20) for step in range(start, start + LENGTH)}


def test_a_tie_clones_neither_segment() -> None:
    found = cloned(PREFERRED, [0.5, 1.0])
    assert {step for step, weight in found.items() if weight} == set(range(30, 35))


def test_a_soft_label_counts_by_its_distance_from_a_tie() -> None:
    found = cloned(PREFERRED, [0.3, 0.9])
    assert {found[step] for step in range(0, 5)} == {0.4}
    assert {found[step] for step in range(30, 35)} == {0.8}
    assert not any(step in found for step in (*range(10, 15), *range(20, 25)))


def test_all_data_are_cloned_alike() -> None:
    config = bc.Config(batch_size=8, segment_length=LENGTH, data="all")
    assert cloned(config, [1.0, 0.0]) == dict.fromkeys(range(STEPS), 1)


def test_cloning_loss_by_hand() -> None:
    # Squared distances 0.25 + 1 and 4, weights 1 and 0.5: (1.25 + 2) / 1.5.
    policy = jnp.array([[0.5, 0.0], [0.0, 1.0]])
    actions = jnp.array([[0.0, 1.0], [0.0, -1.0]])
    found = bc.cloning_loss(policy, actions, jnp.array([1.0, 0.5]))
    assert found == pytest.approx(3.25 / 1.5)
    # Ties alone: no loss, and a gradient of zeros.
    value, grad = jax.value_and_grad(bc.cloning_loss)(policy, actions, jnp.zeros(2))
    assert value == 0
    assert not grad.any()
    for weights in (jnp.ones(1), jnp.ones((2, 1))):
        with pytest.raises(AssertionError):
            bc.cloning_loss(policy, actions, weights)


@pytest.mark.parametrize(
    ("data", "labels", "expected"),
    [
        # Actions at steps 10 to 14 and 20 to 24, on average -0.32 and 0.08: -0.12.
        ("preferred", [1.0, 0.0], -0.12),
        # Steps 30 to 34, on average 0.48; the other pair is a tie.
        ("preferred", [0.5, 1.0], 0.48),
        # All 40 steps, on average -0.02.
        ("all", [1.0, 0.0], -0.02),
    ],
)
def test_a_policy_that_sees_nothing_clones_the_mean_action(
    data: Any, labels: list[float], expected: float
) -> None:
    store, view = store_of_steps(labels)
    store = store.replace(observations=jnp.zeros_like(store.observations))
    config = bc.Config(
        hidden_layers=1, hidden_dim=4, batch_size=256, segment_length=LENGTH, data=data
    )
    state = bc.init(config, jax.random.key(0), 1, 1, learning_rate=jnp.float32(3e-3))
    state, _ = training.train(bc, config, 500, state, jax.random.key(1), store, view)
    assert float(bc.act(config, state, jnp.zeros(1))[0]) == pytest.approx(expected, abs=0.03)


def test_defaults() -> None:
    init = functools.partial(bc.init, bc.Config(), observation_dim=39, action_dim=4)
    state = jax.eval_shape(init, jax.random.key(0))
    count = sum(leaf.size for leaf in jax.tree.leaves(state.actor.params))
    assert count == 39 * 256 + 256 + 256 * 256 + 256 + 256 * 4 + 4
    assert bc.Swept().learning_rate == 3e-4
