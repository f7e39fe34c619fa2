"""The reward model: what it is made of, in which order it sees labels, and that it learns."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from appo_jax import reward_model, training
from appo_jax.data import preferences, sampling
from appo_jax.data.dataset import Dataset, Episode, from_episodes, to_device
from appo_jax.keys import Purpose
from appo_jax.types import InputError, LabelledPairs

SMALL = reward_model.Config(hidden_dim=16, num_epochs=4, batch_size=4)
jitted_init = jax.jit(reward_model.init, static_argnums=(0, 2, 3, 4))
jitted_sample = jax.jit(reward_model.sample, static_argnums=0)
jitted_relabel = jax.jit(reward_model.relabel, static_argnums=(0, 4))


def init(num_pairs: int) -> reward_model.TrainState:
    return jitted_init(SMALL, jax.random.key(0), 3, 1, num_pairs)


def leaf_of(tree: Any, *path: str) -> np.ndarray:
    for name in path:
        tree = tree[name]
    return np.asarray(tree)


def planted_dataset(num_episodes: int = 20, steps: int = 60) -> Dataset:
    """Random walks whose reward is a known linear function of observation and action."""
    rng = np.random.default_rng(0)
    weights = np.array([1.0, -0.5, 0.0, 0.8])
    episodes = []
    for _ in range(num_episodes):
        observations = np.cumsum(rng.normal(size=(steps + 1, 3)), axis=0)
        actions = rng.uniform(-1, 1, (steps, 1))
        rewards = np.concatenate([observations[:-1], actions], axis=1) @ weights
        episodes.append(Episode(observations, actions, rewards, np.zeros(steps, bool)))
    return from_episodes(episodes, "planted")


def test_parameter_count_is_lires() -> None:
    state = jitted_init(reward_model.Config(), jax.random.key(0), 39, 4, 500)
    # 43 -> 128 -> 128 -> 1: 43*128 + 128 + 128*128 + 128 + 128 + 1 = 22,273 for each of three.
    assert sum(leaf.size for leaf in jax.tree.leaves(state.members.params)) == 3 * 22_273
    kernel = state.members.params["params"]["hidden_0"]["kernel"]
    assert not np.array_equal(kernel[0], kernel[1])


@pytest.mark.parametrize(("epoch", "expected"), [(0, 1e-3), (9, 1e-3), (10, 9e-4), (299, 4.710e-5)])
def test_learning_rate_decays_in_steps(epoch: int, expected: float) -> None:
    state = init(num_pairs=10)
    assert state.updates_per_epoch == 3
    batch = reward_model.Batch(jnp.ones((3, 4, 2, 5, 4)), jnp.ones((3, 4)), jnp.ones((3, 4)))
    # Unequal segments, so that there is a gradient; the second is the one with 0.
    batch = batch.replace(inputs=batch.inputs.at[:, :, 1].set(0.0))
    adam, schedule = state.members.optimiser
    for at in (3 * epoch, 3 * epoch + 2):
        step = jnp.int32(at)
        optimiser = (adam, schedule._replace(count=step))
        before = state.replace(step=step, members=state.members.replace(optimiser=optimiser))
        after, metrics = reward_model.update_step(SMALL, before, batch)
        assert metrics["reward/learning_rate"] == pytest.approx(expected, rel=1e-3)
        # Adam's first step is the rate, whatever the size of the gradient.
        bias = ("params", "hidden_0", "bias")
        moved = [leaf_of(one.members.params, *bias) for one in (before, after)]
        assert np.abs(moved[1] - moved[0]).max() == pytest.approx(expected, rel=1e-2)


def test_an_epoch_shows_every_pair_once_to_each_member_in_its_own_order() -> None:
    num_pairs = 10  # batches of 4, 4 and 2
    store, view = to_device(planted_dataset(1), 5)
    rows = jnp.stack([jnp.arange(num_pairs), jnp.arange(num_pairs) + 20], axis=1)
    pairs = LabelledPairs(rows, jnp.arange(num_pairs) / 10, length=5)
    key = jax.random.key(0)
    epochs: list[list[list[float]]] = []
    for epoch in range(2):
        seen: list[list[float]] = [[], [], []]
        for update in range(3):
            step = jnp.int32(3 * epoch + update)
            batch = jax.device_get(jitted_sample(SMALL, key, step, store, view, pairs))
            assert batch.inputs.shape == (3, 4, 2, 5, 4)
            for member in range(3):
                shown = batch.weights[member] > 0
                assert shown.sum() == (2 if update == 2 else 4)
                seen[member] += np.round(batch.labels[member][shown] * 10).astype(int).tolist()
        for member in range(3):
            assert sorted(seen[member]) == list(range(num_pairs))
        assert seen[0] != seen[1]
        epochs.append(seen)
    assert epochs[0] != epochs[1]


def test_a_batch_holds_the_segments_that_its_labels_belong_to() -> None:
    dataset = planted_dataset(2)
    store, view = to_device(dataset, 5)
    rows = jnp.array([[3, 70], [61 + 55, 0]])  # the second starts the last segment of episode 1
    pairs = LabelledPairs(rows, jnp.array([0.0, 1.0]), length=5)
    batch = jitted_sample(SMALL, jax.random.key(0), jnp.int32(0), store, view, pairs)
    steps = np.concatenate([store.observations, store.actions], axis=1)
    inputs, pairs_of = np.asarray(batch.inputs), np.asarray(batch.labels).astype(int)
    for member in range(3):
        for index in range(2):
            for side in range(2):
                first = int(rows[pairs_of[member, index], side])
                np.testing.assert_array_equal(inputs[member, index, side], steps[first : first + 5])


def test_filling_has_no_weight() -> None:
    state = init(4)
    inputs = jax.random.normal(jax.random.key(1), (3, 4, 2, 5, 4))
    labels, weights = jnp.ones((3, 4)), jnp.tile(jnp.array([1.0, 1.0, 0.0, 0.0]), (3, 1))
    one, metrics = reward_model.update_step(
        SMALL, state, reward_model.Batch(inputs, labels, weights)
    )
    changed = inputs.at[:, 2:].add(5.0)
    two, others = reward_model.update_step(
        SMALL, state, reward_model.Batch(changed, labels, weights)
    )
    assert metrics["reward/loss"] == others["reward/loss"]
    jax.tree.map(np.testing.assert_array_equal, one.members.params, two.members.params)


def test_relabelling_fills_zero_to_one_and_leaves_last_rows_alone() -> None:
    dataset = planted_dataset(3)
    store, view = to_device(dataset, 5)
    state = init(4)
    raw_config = dataclasses.replace(SMALL, scale="raw")
    scaled, raw = (
        np.asarray(jitted_relabel(config, state, store, view, len(store.actions)))
        for config in (SMALL, raw_config)
    )
    steps = dataset.transition_rows()
    assert scaled[steps].min() == 0
    assert scaled[steps].max() == pytest.approx(1, abs=1e-6)
    assert np.abs(raw[steps]).max() < 1
    low, high = raw[steps].min(), raw[steps].max()
    np.testing.assert_allclose(scaled[steps], (raw[steps] - low) / (high - low), atol=1e-5)
    last = np.setdiff1d(np.arange(len(raw)), steps)
    assert not scaled[last].any()
    assert not raw[last].any()
    # The mean over members of tanh, by hand for one row.
    inputs = np.concatenate([store.observations[7], store.actions[7]])
    outputs = []
    for member in range(3):
        hidden = inputs
        for name in ("hidden_0", "hidden_1", "output"):
            layer = jax.tree.map(
                lambda leaf, m=member: leaf[m], state.members.params["params"][name]
            )
            hidden = hidden @ layer["kernel"] + layer["bias"]
            if name != "output":
                hidden = np.where(hidden > 0, hidden, 0.01 * hidden)
        outputs.append(np.tanh(hidden[0]))
    assert raw[7] == pytest.approx(np.mean(outputs), abs=1e-5)


def test_a_view_scales_over_its_own_transitions_only() -> None:
    store, view = to_device(planted_dataset(3), 5)
    state = init(4)
    view = view.replace(first_transition=jnp.int32(60), num_transitions=jnp.int32(60))
    rewards = np.asarray(jitted_relabel(SMALL, state, store, view, len(store.actions)))
    own = slice(61, 121)  # the second episode: 60 steps behind the first one's 61 rows
    assert (rewards[own].min(), rewards[own].max()) == (0, pytest.approx(1, abs=1e-6))
    assert not rewards[:61].any()
    assert not rewards[121:].any()


def test_a_planted_reward_is_recovered_from_labels() -> None:
    dataset = planted_dataset()
    labels = preferences.scripted(dataset, 0, 300, 10, tie_threshold=0.0)
    fresh = preferences.scripted(dataset, 0, 500, 10, 0.0, purpose=Purpose.FRESH_LABELS)
    config = reward_model.Config(hidden_dim=32, num_epochs=60, batch_size=64)
    store, view = to_device(dataset, 10)
    state = jitted_init(config, jax.random.key(0), 3, 1, 300)
    rows = len(store.actions)
    before = jitted_relabel(config, state, store, view, rows)
    num_updates = reward_model.num_updates(config, 300)
    assert num_updates == 60 * 5
    pairs = labels.to_device(dataset)
    for _ in range(2):
        state, metrics = training.train(
            reward_model, config, num_updates // 2, state, jax.random.key(1), store, view, pairs
        )
    assert state.step == num_updates
    rewards = jitted_relabel(config, state, store, view, rows)
    correct, judged = (metrics[f"reward/train_{name}"] for name in ("correct", "judged"))
    assert judged == 60  # pairs of a batch, over the last 150 updates
    assert correct > 0.95 * judged
    steps = fresh.rows(dataset)[..., None] + np.arange(10)
    accuracy, count = preferences.accuracy(fresh.labels, np.asarray(rewards)[steps].sum(axis=-1))
    assert count == 500
    assert accuracy is not None
    assert accuracy > 0.95
    untrained, _ = preferences.accuracy(fresh.labels, np.asarray(before)[steps].sum(axis=-1))
    assert untrained is not None
    assert untrained < 0.9


def test_a_score_is_the_sum_of_what_relabelling_gives_the_steps() -> None:
    config = dataclasses.replace(SMALL, scale="raw")
    data = planted_dataset(2)
    store, view = to_device(data, 5)
    state = init(4)
    rewards = np.asarray(jitted_relabel(config, state, store, view, len(store.actions)))
    rows = np.array([[3, 70], [61 + 55, 0]])
    segments = sampling.gather_segment_pairs(store, view, jnp.array(rows), 5)
    expected = rewards[rows[..., None] + np.arange(5)].sum(axis=-1)
    found = reward_model.score(config, state, segments)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_steps_behind_a_segments_end_count_for_nothing() -> None:
    data = planted_dataset(2)
    store, view = to_device(data, 5)
    rows, labels = jnp.array([[3, 70], [100, 117]]), jnp.array([1.0, 0.0])
    # The last segment ends with the data set: what would be its third step lies in no array.
    lengths = jnp.array([[5, 2], [4, 4]])
    any_length = LabelledPairs(rows=rows, labels=labels, length=5, lengths=lengths)
    batch = jitted_sample(SMALL, jax.random.key(0), jnp.int32(0), store, view, any_length)
    assert batch.is_step is not None
    first = int(jnp.argmax(batch.labels[0]))
    np.testing.assert_array_equal(batch.is_step[0, first].sum(axis=-1), [5, 2])
    state = init(2)
    after, metrics = reward_model.update_step(SMALL, state, batch)
    elsewhere = batch.replace(
        inputs=jnp.where(batch.is_step[..., None], batch.inputs, 1e3 * batch.inputs + 5)
    )
    again, same = reward_model.update_step(SMALL, state, elsewhere)
    np.testing.assert_array_equal(metrics["reward/loss"], same["reward/loss"])
    jax.tree.map(np.testing.assert_array_equal, after.members.params, again.members.params)

    def whole(length: int, pair: int) -> np.ndarray:
        one = LabelledPairs(rows=rows[pair : pair + 1], labels=labels[pair:][:1], length=length)
        alone = jitted_sample(SMALL, jax.random.key(0), jnp.int32(0), store, view, one)
        return np.asarray(alone.inputs[0, 0])

    np.testing.assert_array_equal(batch.inputs[0, first, 0], whole(5, 0)[0])
    np.testing.assert_array_equal(batch.inputs[0, first, 1, :2], whole(2, 0)[1])
    np.testing.assert_array_equal(batch.inputs[0, 1 - first, :, :4], whole(4, 1))


def test_a_crop_is_of_one_length_with_a_start_for_each_side() -> None:
    data = planted_dataset(2)
    store, view = to_device(data, 5)
    pairs = LabelledPairs(rows=jnp.array([[3, 70], [20, 90]]), labels=jnp.ones(2), length=5)
    config = dataclasses.replace(SMALL, crop=3)
    sample = functools.partial(jitted_sample, config)
    seen = set()
    for step in range(40):
        batch = sample(jax.random.key(0), jnp.int32(step), store, view, pairs)
        assert batch.is_step is not None
        found = np.asarray(batch.is_step)
        assert (found == found[:, :1]).all()  # shared by the pairs of a member's batch
        for member in found[:, 0]:
            lengths, starts = member.sum(axis=-1), member.argmax(axis=-1)
            assert lengths[0] == lengths[1]
            for side, start in zip(member, starts, strict=True):
                assert side[start : start + lengths[0]].all()
            seen.add((int(lengths[0]), *starts.tolist()))
    # 3 steps begin at 0 to 2, 4 at 0 or 1, 5 at 0: nine, four and one.
    expected = {(n, a, b) for n in (3, 4, 5) for a in range(6 - n) for b in range(6 - n)}
    assert seen == expected
    whole = jitted_sample(SMALL, jax.random.key(0), jnp.int32(0), store, view, pairs)
    first = sample(jax.random.key(0), jnp.int32(0), store, view, pairs)
    np.testing.assert_array_equal(whole.inputs, first.inputs)  # pairs are drawn as without
    for wrong, message in (
        (pairs.replace(lengths=jnp.full((2, 2), 5)), "which differ, expected equally long ones"),
        (pairs.replace(length=2), "crop=3: labels compare segments of up to 2 steps, expected"),
    ):
        with pytest.raises(InputError, match=message):
            sample(jax.random.key(0), jnp.int32(0), store, view, wrong)


def test_the_linear_loss_is_that_of_the_config() -> None:
    config = dataclasses.replace(SMALL, loss="linear")
    data = planted_dataset(2)
    store, view = to_device(data, 5)
    pairs = LabelledPairs(
        rows=jnp.array([[3, 70], [20, 90]]), labels=jnp.array([1.0, 0.0]), length=5
    )
    state = init(2)
    batch = jitted_sample(config, jax.random.key(0), jnp.int32(0), store, view, pairs)
    _, metrics = reward_model.update_step(config, state, batch)
    outputs = jnp.tanh(
        jax.vmap(functools.partial(reward_model.forward, reward_model._network(config)))(
            state.members.params, batch.inputs
        )
    )[..., 0].sum(axis=-1)
    expected = reward_model.linear_preference_loss(outputs, batch.labels, 5).mean(
        where=batch.weights > 0
    )
    assert metrics["reward/loss"] == pytest.approx(float(expected), rel=1e-5)


@pytest.mark.parametrize(
    ("scores", "label", "expected"),
    [
        ((0.0, 0.0), 1.0, np.log(2)),
        # Shifted by 25: 20 and 30, so log(50 / 30).
        ((-5.0, 5.0), 1.0, 0.51083),
        ((-5.0, 5.0), 0.0, np.log(50 / 20)),
        ((-5.0, 5.0), 0.5, (np.log(50 / 30) + np.log(50 / 20)) / 2),
        # 1e-5 and 50: log(1 + 2e-7), and its other side.
        ((-25.0, 25.0), 1.0, 2e-7),
        ((-25.0, 25.0), 0.0, np.log(50 / 1e-5)),
    ],
)
def test_linear_preference_loss_by_hand(
    scores: tuple[float, float], label: float, expected: float
) -> None:
    found = reward_model.linear_preference_loss(jnp.array([scores]), jnp.array([label]), 25)
    assert found.shape == (1,)
    assert found[0] == pytest.approx(expected, abs=1e-5)


def test_linear_preference_loss_of_different_lengths() -> None:
    # 5 + 10 and -5 + 20 are equal.
    found = reward_model.linear_preference_loss(
        jnp.array([[5.0, -5.0]]), jnp.array([0.3]), jnp.array([[10, 20]])
    )
    assert found[0] == pytest.approx(np.log(2), abs=1e-5)
