"""Preference Transformer: scores and rewards by hand, what is held out, and that it learns.

The body is tested in `test_transformer.py`, gradients are compared with PyTorch's in
`test_torch_preference_transformer.py`.
"""

import dataclasses
import functools
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from appo_jax import losses, preference_transformer, training, transformer
from appo_jax.data import preferences, sampling
from appo_jax.data.dataset import Dataset, Episode, from_episodes, to_device
from appo_jax.keys import Purpose
from appo_jax.preference_transformer import TrainState
from appo_jax.transformer import Windows
from appo_jax.types import LabelledPairs

LENGTH, NUM_PAIRS = 5, 10
SMALL = preference_transformer.Config(
    num_heads=2,
    head_dim=4,
    num_epochs=4,
    batch_size=4,
    evaluation_epochs=1,
    held_out=0.3,
    segment_length=LENGTH,
)
jitted_init = jax.jit(preference_transformer.init, static_argnums=(0, 2, 3, 4))
jitted_sample = jax.jit(preference_transformer.sample, static_argnums=0)
both_heads = pytest.mark.parametrize("attention", [True, False])


def init(config: preference_transformer.Config = SMALL) -> TrainState:
    return jitted_init(config, jax.random.key(0), 3, 1, NUM_PAIRS)


@functools.cache
def walks(num_episodes: int = 4, steps: int = 30) -> Dataset:
    """Random walks whose reward is a known linear function of observation and action."""
    rng = np.random.default_rng(0)
    episodes = []
    for _ in range(num_episodes):
        observations = np.cumsum(rng.normal(size=(steps + 1, 3)), axis=0)
        actions = rng.uniform(-1, 1, (steps, 1))
        rewards = observations[:-1, 0] - 0.5 * observations[:-1, 1] + actions[:, 0]
        episodes.append(Episode(observations, actions, rewards, np.zeros(steps, bool)))
    return from_episodes(episodes, "walks")


def pairs_of(labels: Any) -> LabelledPairs:
    rows = np.random.default_rng(1).choice(walks().segment_rows(LENGTH), (NUM_PAIRS, 2))
    return LabelledPairs(jnp.asarray(rows), jnp.asarray(labels, jnp.float32), LENGTH)


LABELS = [0.0, 1.0, 1.0, 0.5, 0.0, 1.0, 0.0, 1.0, 0.0, 0.0]


def fitted(config: preference_transformer.Config, labels: Any) -> tuple[list[TrainState], list]:
    """The state after each update of a whole fit, and its metrics."""
    store, view = to_device(walks(), LENGTH)
    pairs = pairs_of(labels)
    states, metrics = [init(config)], []
    for step in range(preference_transformer.num_updates(config, NUM_PAIRS)):
        batch = jitted_sample(config, jax.random.key(1), jnp.int32(step), store, view, pairs)
        after, own = preference_transformer.update_step(config, states[-1], batch)
        states.append(after)
        metrics.append(own)
    return states, metrics


def test_attention_weighs_rewards_by_hand() -> None:
    # q_i . k_t is 0 for the first query: weights of a half, z_1 = 2. For the second it is log 3
    # and 0: weights of 3/4 and 1/4, z_2 = 3/4 * 3 + 1/4 * 1 = 2.5. Their mean is 2.25.
    queries, keys = jnp.array([[0.0], [1.0]]), jnp.array([[np.log(3.0)], [0.0]])
    found = preference_transformer.attended_score(queries, keys, jnp.array([3.0, 1.0]))
    assert found == pytest.approx(2.25)


def test_equal_rewards_are_the_score_whatever_is_attended_to() -> None:
    queries, keys = jax.random.normal(jax.random.key(0), (2, 4, 7, 3))
    found = preference_transformer.attended_score(queries, keys, jnp.full((4, 7), 1.5))
    np.testing.assert_allclose(found, 1.5, rtol=1e-6)
    with pytest.raises(AssertionError):
        preference_transformer.attended_score(queries, keys, jnp.ones((4, 6)))


@both_heads
def test_a_score_is_made_of_the_rewards_of_its_steps(attention: bool) -> None:
    config = dataclasses.replace(SMALL, preference_attention=attention)
    state, network = init(config), preference_transformer.Network(config)
    store, view = to_device(walks(), LENGTH)
    segments = sampling.gather_segment_pairs(store, view, jnp.array([[3, 40]]), LENGTH)
    found = jax.jit(preference_transformer.score, static_argnums=0)(config, state, segments)

    @jax.jit
    def outputs(params: Any) -> Any:
        windows = Windows(segments.observations[0, :, :-1], segments.actions[0])
        hidden = network.apply(params, windows, method=lambda own, windows: own.body(windows))
        rewards = network.apply(params, hidden, method=lambda own, hidden: own._rewards(hidden))
        return hidden, rewards, network.apply(params, windows, method="last_rewards")

    hidden, rewards, last = map(np.asarray, outputs(state.best_params))
    np.testing.assert_allclose(last, rewards[:, -1], rtol=1e-4)
    if attention:
        params = state.best_params["params"]
        queries = hidden @ params["query"]["kernel"] + params["query"]["bias"]
        keys = hidden @ params["key"]["kernel"]
        weights = jax.nn.softmax(np.einsum("sid,std->sit", queries, keys))
        expected = np.einsum("sit,st->si", weights, rewards).mean(axis=1)
    else:
        expected = rewards.mean(axis=1)
    np.testing.assert_allclose(found[0], expected, rtol=1e-4, atol=1e-5)


@both_heads
def test_equal_segments_have_a_loss_of_log_2(attention: bool) -> None:
    config = dataclasses.replace(SMALL, preference_attention=attention)
    store, view = to_device(walks(), LENGTH)
    segments = sampling.gather_segment_pairs(store, view, jnp.array([[3, 3], [40, 40]]), LENGTH)
    score = jax.jit(preference_transformer.score, static_argnums=0)
    scores = score(config, init(config), segments)
    found = losses.preference_loss(scores, jnp.array([0.0, 0.7]))
    np.testing.assert_allclose(found, np.log(2), rtol=1e-5)


def test_parameter_count() -> None:
    config = preference_transformer.Config()
    state = jax.eval_shape(lambda: jitted_init(config, jax.random.key(0), 39, 4, 500))
    # The body's 808,448 (`test_transformer.py`), a query with bias (65,792), a key (65,536) and a
    # reward (256) without.
    assert sum(leaf.size for leaf in jax.tree.leaves(state.model.params)) == 940_032
    config = dataclasses.replace(config, preference_attention=False)
    state = jax.eval_shape(lambda: jitted_init(config, jax.random.key(0), 39, 4, 500))
    # 256 to 128 (32,896) and 128 to 1.
    assert sum(leaf.size for leaf in jax.tree.leaves(state.model.params)) == 841_472


@functools.cache
def whole_fit() -> tuple[list[TrainState], list]:
    return fitted(SMALL, LABELS)


def test_the_last_pairs_are_evaluated_on_and_nothing_else() -> None:
    states, metrics = whole_fit()
    assert len(metrics) == 4 * 2  # four epochs of seven pairs, four at a time
    others, other_metrics = fitted(SMALL, [*LABELS[:7], 1.0, 1.0, 1.0])
    chex.assert_trees_all_equal(states[-1].model.params, others[-1].model.params)
    assert metrics[-1]["reward/held_out_loss"] != other_metrics[-1]["reward/held_out_loss"]
    different, _ = fitted(SMALL, [1 - label for label in LABELS[:7]] + LABELS[7:])
    with pytest.raises(AssertionError):
        chex.assert_trees_all_equal(states[-1].model.params, different[-1].model.params)


def held_out_loss(params: Any) -> float:
    """By hand, of the last three pairs."""
    store, view = to_device(walks(), LENGTH)
    pairs = pairs_of(LABELS)
    segments = sampling.gather_segment_pairs(store, view, pairs.rows[7:], LENGTH)
    score = jax.jit(preference_transformer.score, static_argnums=0)
    scores = np.asarray(score(SMALL, init().replace(best_params=params), segments))
    margin = scores[:, 1] - scores[:, 0]
    return float(np.mean(np.log1p(np.exp(margin)) - np.asarray(pairs.labels)[7:] * margin))


@pytest.mark.parametrize(
    ("evaluation_epochs", "due", "least_improvement"),
    [(3, [6, 8], 10.0), pytest.param(1, [2, 4, 6, 8], 1e-3, marks=pytest.mark.slow)],
)
def test_the_best_of_the_evaluations_is_kept(
    evaluation_epochs: int, due: list[int], least_improvement: float
) -> None:
    """At the end of so many epochs, and of the last; the first one is the best so far."""
    changed = {"evaluation_epochs": evaluation_epochs, "least_improvement": least_improvement}
    config = dataclasses.replace(SMALL, **changed, learning_rate=0.03)
    states, metrics = fitted(config, LABELS)
    best, least = states[0].best_params, np.log(2)
    for update in range(1, len(states)):
        loss = held_out_loss(states[update].model.params) if update in due else np.inf
        if update == due[0] or loss < least - least_improvement:
            best, least = states[update].model.params, loss
        chex.assert_trees_all_equal(states[update].best_params, best)
        assert metrics[update - 1]["reward/held_out_loss"] == pytest.approx(least, rel=1e-4)


@pytest.mark.parametrize(("update", "expected"), [(0, 1e-4), (100, 1e-3), (999, 1e-4)])
def test_an_update_takes_the_rate_of_the_schedule(update: int, expected: float) -> None:
    # 500 epochs of 2 updates; without decay, AdamW's first step is the rate. Of 10 pairs 0.9 are
    # held out, so none is, and the last model is the best one.
    config = dataclasses.replace(
        SMALL, num_epochs=500, weight_decay=0.0, held_out=0.09, batch_size=5, dropout=0.0
    )
    state = init(config)
    assert state.updates_per_epoch == 2
    (adam, decay, schedule), step = state.model.optimiser, jnp.int32(update)
    optimiser = (adam, decay, schedule._replace(count=step))
    state = state.replace(step=step, model=state.model.replace(optimiser=optimiser))
    store, view = to_device(walks(), LENGTH)
    pairs = pairs_of(LABELS)
    batch = jitted_sample(config, jax.random.key(1), step, store, view, pairs)
    after, metrics = preference_transformer.update_step(config, state, batch)
    assert metrics["reward/learning_rate"] == pytest.approx(expected, rel=1e-3)
    kernel = [each.model.params["params"]["reward"]["kernel"] for each in (state, after)]
    assert np.abs(kernel[1] - kernel[0]).max() == pytest.approx(expected, rel=1e-2)
    chex.assert_trees_all_equal(after.best_params, after.model.params)


def test_relabelling_reads_each_rows_own_history() -> None:
    state, network = init(), preference_transformer.Network(SMALL)
    data = walks()
    store, view = to_device(data, LENGTH)
    relabel = jax.jit(preference_transformer.relabel, static_argnums=(0, 4))
    rewards = np.asarray(relabel(SMALL, state, store, view, len(data.actions)))
    raw = np.zeros_like(rewards)
    apply = jax.jit(functools.partial(network.apply, method="last_rewards"))
    observations, actions = np.asarray(store.observations), np.asarray(store.actions)
    for start in data.episode_starts:
        for step in range(30):
            rows = np.arange(max(start, start + step - LENGTH + 1), start + step + 1)
            window = Windows(observations[rows][None], actions[rows][None])
            raw[start + step] = apply(state.best_params, window)[0]
    steps = data.transition_rows()
    low, high = raw[steps].min(), raw[steps].max()
    np.testing.assert_allclose(rewards[steps], (raw[steps] - low) / (high - low), atol=1e-4)
    assert (rewards[steps].min(), rewards[steps].max()) == (0, pytest.approx(1))
    assert not np.delete(rewards, steps).any()


@pytest.mark.slow
def test_a_planted_reward_is_recovered_from_labels() -> None:
    data = walks(20, 60)
    labels = preferences.scripted(data, 0, 200, LENGTH, tie_threshold=0.0)
    fresh = preferences.scripted(data, 0, 300, LENGTH, 0.0, purpose=Purpose.FRESH_LABELS)
    config = preference_transformer.Config(
        num_heads=2, head_dim=16, num_epochs=25, batch_size=32, segment_length=LENGTH
    )
    store, view = to_device(data, LENGTH)
    state = jitted_init(config, jax.random.key(0), 3, 1, 200)
    pairs, to_judge = labels.to_device(data), fresh.to_device(data)

    def accuracy(state: TrainState) -> float:
        scores = training.score(preference_transformer, config, state, store, view, to_judge)
        share, _ = preferences.accuracy(fresh.labels, np.asarray(scores))
        assert share is not None
        return share

    assert accuracy(state) < 0.8
    num_updates = preference_transformer.num_updates(config, 200)
    assert num_updates == 25 * transformer.updates_per_epoch(config, 180)
    state, metrics = training.train(
        preference_transformer, config, num_updates, state, jax.random.key(1), store, view, pairs
    )
    assert accuracy(state) > 0.9
    assert metrics["reward/train_correct"] > 0.8 * metrics["reward/train_judged"]
