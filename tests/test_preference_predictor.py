"""DPPO's predictor: scores of short windows, the smoothness term, its neighbours."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from appo_jax import preference_predictor, training
from appo_jax.data import preferences
from appo_jax.data.dataset import Dataset, Episode, from_episodes, to_device
from appo_jax.keys import Purpose
from appo_jax.transformer import Windows
from appo_jax.types import InputError, LabelledPairs

LENGTH, NUM_PAIRS, STEPS = 5, 8, 30
SMALL = preference_predictor.Config(
    num_heads=2, head_dim=4, num_epochs=4, batch_size=8, segment_length=LENGTH
)
jitted_init = jax.jit(preference_predictor.init, static_argnums=(0, 2, 3, 4))


def init(config: preference_predictor.Config = SMALL) -> preference_predictor.TrainState:
    return jitted_init(config, jax.random.key(0), 3, 1, NUM_PAIRS)


@functools.cache
def walks(num_episodes: int = 4, steps: int = STEPS) -> Dataset:
    rng = np.random.default_rng(0)
    episodes = []
    for _ in range(num_episodes):
        observations = np.cumsum(rng.normal(size=(steps + 1, 3)), axis=0)
        actions = rng.uniform(-1, 1, (steps, 1))
        rewards = observations[:-1, 0] + actions[:, 0]
        episodes.append(Episode(observations, actions, rewards, np.zeros(steps, bool)))
    return from_episodes(episodes, "walks")


@functools.cache
def pairs() -> LabelledPairs:
    rows = np.arange(2 * NUM_PAIRS).reshape(NUM_PAIRS, 2)  # all in the first episode
    return LabelledPairs(jnp.asarray(rows, jnp.int32), jnp.arange(NUM_PAIRS) % 2.0, LENGTH)


def sample(config: preference_predictor.Config, step: int = 0) -> preference_predictor.Batch:
    store, view = to_device(walks(), LENGTH)
    run = jax.jit(preference_predictor.sample, static_argnums=0)
    return run(config, jax.random.key(1), jnp.int32(step), store, view, pairs())


def test_parameter_count() -> None:
    config = preference_predictor.Config()
    state = jax.eval_shape(lambda: jitted_init(config, jax.random.key(0), 39, 4, 500))
    # The body's 808,448 (`test_transformer.py`), 256 to 128 (32,896) and 128 to 1 without bias.
    assert sum(leaf.size for leaf in jax.tree.leaves(state.model.params)) == 841_472


def test_relabelling_scores_the_window_that_ends_at_each_row() -> None:
    """The first ones of an episode are short, and means over their own steps."""
    state, data = init(), walks()
    store, view = to_device(data, LENGTH)
    relabel = jax.jit(preference_predictor.relabel, static_argnums=(0, 4))
    scores = np.asarray(relabel(SMALL, state, store, view, len(data.actions)))
    apply = jax.jit(preference_predictor.Network(SMALL).apply)
    observations, actions = np.asarray(store.observations), np.asarray(store.actions)
    for start in data.episode_starts:
        for step in range(STEPS):
            rows = np.arange(max(start, start + step - LENGTH + 1), start + step + 1)
            window = Windows(observations[rows][None], actions[rows][None])
            expected = float(apply(state.model.params, window)[0])
            assert scores[start + step] == pytest.approx(expected, abs=1e-5)
    assert not np.delete(scores, data.transition_rows()).any()


def test_smoothness_by_hand() -> None:
    found = preference_predictor.smoothness_loss(jnp.array([1.0, 2.0]), jnp.array([1.0, 5.0]))
    assert found == pytest.approx(4.5)
    with pytest.raises(AssertionError):
        preference_predictor.smoothness_loss(jnp.zeros(2), jnp.zeros(3))


def test_without_a_shift_scores_differ_by_nothing_in_spite_of_dropout() -> None:
    config = dataclasses.replace(SMALL, smoothness_steps=0.0, dropout=0.5)
    _, metrics = preference_predictor.update_step(config, init(config), sample(config))
    assert metrics["reward/roughness"] == 0


def test_roughness_is_of_the_neighbours_scores_and_falls() -> None:
    config = dataclasses.replace(SMALL, dropout=0.0, smoothness=100.0, learning_rate=0.01)
    batch, state = sample(config), init(config)
    _, metrics = preference_predictor.update_step(config, state, batch)
    apply = jax.jit(preference_predictor.Network(config).apply)
    scores = np.asarray(apply(state.model.params, batch.neighbours))
    expected = np.mean(np.square(scores[:, 0] - scores[:, 1]))
    first = float(metrics["reward/roughness"])
    assert first == pytest.approx(float(expected), rel=1e-4)
    for _ in range(20):
        state, metrics = preference_predictor.update_step(config, state, batch)
    assert metrics["reward/roughness"] < 0.2 * first


def rows_of(windows: Any) -> np.ndarray:
    """First rows of windows, found again by their observations."""
    store, _ = to_device(walks(), LENGTH)
    rows = np.argwhere(
        (np.asarray(windows.observations)[..., 0, None, :] == store.observations).all(axis=-1)
    )
    return rows[:, -1].reshape(windows.observations.shape[:2])


def test_neighbours_lie_in_one_episode_and_half_of_them_have_labels() -> None:
    shifts, firsts = [], []
    for step in range(20):
        rows = rows_of(sample(SMALL, step).neighbours)
        assert rows.shape == (NUM_PAIRS, 2)
        np.testing.assert_array_equal(rows[:, 0] // (STEPS + 1), rows[:, 1] // (STEPS + 1))
        assert (rows[: NUM_PAIRS // 2, 0] < 2 * NUM_PAIRS).all()
        firsts += rows[NUM_PAIRS // 2 :, 0].tolist()
        shifts += (rows[:, 1] - rows[:, 0]).tolist()
    assert set(firsts) <= set(walks().segment_rows(LENGTH))
    assert len({row // (STEPS + 1) for row in firsts}) == 4
    # Of a normal with deviation 20 cut to the 26 segments of an episode, many are at its ends.
    assert min(shifts) < -10
    assert max(shifts) > 10


def test_windows_longer_than_the_stores_are_refused() -> None:
    """Shifted ones would lie across the ends of episodes."""
    store, view = to_device(walks(), LENGTH - 1)
    with pytest.raises(InputError, match=f"segments of {LENGTH} steps for a store .* {LENGTH - 1}"):
        preference_predictor.sample(SMALL, jax.random.key(1), jnp.int32(0), store, view, pairs())


@pytest.mark.slow
def test_planted_preferences_are_recovered() -> None:
    data = walks(20, 60)
    labels = preferences.scripted(data, 0, 200, LENGTH, tie_threshold=0.0)
    fresh = preferences.scripted(data, 0, 300, LENGTH, 0.0, purpose=Purpose.FRESH_LABELS)
    config = preference_predictor.Config(
        num_heads=2,
        head_dim=16,
        num_epochs=25,
        batch_size=32,
        segment_length=LENGTH,
        smoothness_steps=1.0,
    )
    store, view = to_device(data, LENGTH)
    state = jitted_init(config, jax.random.key(0), 3, 1, 200)
    num_updates = preference_predictor.num_updates(config, 200)
    state, _ = training.train(
        *(preference_predictor, config, num_updates, state, jax.random.key(1), store, view),
        labels.to_device(data),
    )
    to_judge = fresh.to_device(data)
    scores = training.score(preference_predictor, config, state, store, view, to_judge)
    accuracy, _ = preferences.accuracy(fresh.labels, np.asarray(scores))
    assert accuracy is not None
    assert accuracy > 0.85
    rewards = np.asarray(
        preference_predictor.relabel(config, state, store, view, len(data.actions))
    )
    # What a segment scores lies at the row where it ends.
    last = np.asarray(to_judge.rows) + LENGTH - 1
    np.testing.assert_allclose(rewards[last], scores, rtol=1e-3, atol=1e-4)
