"""IPL's losses and update by hand, its crops, and where its gradients stop.

That every setting acts is in `test_learners.py`. As in `test_iql.py` most tests take networks that
are constants: with all weights 0 only the bias of the last layer counts, and moves, by Adam's first
step, which is the learning rate.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from appo_jax import ipl, losses
from appo_jax.data.dataset import Episode, from_episodes, to_device, with_pairs
from appo_jax.types import InputError, LabelledPairs, SegmentPairs, Transitions

OBSERVATION_DIM, ACTION_DIM, PAIRS, STEPS, REPLAY = 3, 4, 2, 3, 5
RATE = 0.5
ACTION = 0.5

close = functools.partial(pytest.approx, rel=1e-4, abs=1e-5)
jitted_init = jax.jit(ipl.init, static_argnums=(0, 2, 3))
# Of each program one.
WITH_REPLAY = ipl.Config(
    hidden_layers=1,
    hidden_dim=4,
    num_pairs=PAIRS,
    replay_batch=REPLAY,
    critic_learning_rate=RATE,
    value_learning_rate=RATE,
    actor_learning_rate=RATE,
)
WITHOUT_REPLAY = ipl.Config(
    **{**vars(WITH_REPLAY), "replay_batch": 0, "target_clipping": True}  # no bound is reached
)
both = pytest.mark.parametrize("config", [WITH_REPLAY, WITHOUT_REPLAY], ids=["replay", "none"])
SWEPT = {
    "regularisation": 3.0,
    "replay_weight": 0.5,
    "expectile": 0.75,
    "temperature": 3.0,
    "discount": 0.9,
    "tau": 0.25,
}


def make_batch(config: ipl.Config, terminations: bool = False) -> ipl.Batch:
    keys = jax.random.split(jax.random.key(1), 3)
    pairs = SegmentPairs(
        observations=jax.random.normal(keys[0], (PAIRS, 2, STEPS + 1, OBSERVATION_DIM)),
        actions=jnp.full((PAIRS, 2, STEPS, ACTION_DIM), ACTION),
        rewards=jnp.full((PAIRS, 2, STEPS), jnp.nan),  # nobody reads them
        terminations=jnp.full((PAIRS, 2, STEPS), terminations),
    )
    replay = Transitions(
        observations=jax.random.normal(keys[1], (REPLAY, OBSERVATION_DIM)),
        actions=jnp.full((REPLAY, ACTION_DIM), ACTION),
        rewards=jnp.full(REPLAY, jnp.nan),
        next_observations=jax.random.normal(keys[2], (REPLAY, OBSERVATION_DIM)),
        terminations=jnp.full(REPLAY, terminations),
    )
    return ipl.Batch(pairs, jnp.array([1.0, 0.5]), replay if config.replay_batch else None)


@functools.cache
def fresh(config: ipl.Config) -> ipl.TrainState:
    swept = jax.tree.map(jnp.float32, SWEPT)
    return jitted_init(config, jax.random.key(0), OBSERVATION_DIM, ACTION_DIM, **swept)


def with_bias(params: Any, value: Any) -> Any:
    """Networks that are constants."""
    params = jax.tree.map(jnp.zeros_like, params)
    output = params["params"]["output"]
    bias = jnp.broadcast_to(jnp.array(value).reshape(-1, 1), (np.size(value), 1))
    output = output | {"bias": bias.reshape(output["bias"].shape)}
    return {"params": params["params"] | {"output": output}}


def constant_state(
    config: ipl.Config,
    critics: tuple[float, float] = (1.0, 2.0),
    targets: tuple[float, float] = (3.0, 1.5),
    value: float = 0.5,
    **swept: float,
) -> ipl.TrainState:
    state = fresh(config)
    actor_params = jax.tree.map(jnp.zeros_like, state.actor.params)
    return state.replace(
        actor=state.actor.replace(params=actor_params),
        critics=state.critics.replace(params=with_bias(state.critics.params, critics)),
        value=state.value.replace(params=with_bias(state.value.params, value)),
        target_critic_params=with_bias(state.target_critic_params, targets),
        swept=state.swept.replace(**jax.tree.map(jnp.float32, swept)),
    )


def bias_of(params: Any) -> list[float]:
    return np.asarray(params["params"]["output"]["bias"]).ravel().tolist()


def same(first: Any, second: Any) -> bool:
    leaves = zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True)
    return all(np.array_equal(a, b) for a, b in leaves)


# The losses.


def test_implied_rewards_by_hand() -> None:
    # 1 - 0.99 * 1 a step, 15 steps of which sum to 0.15; 1 where nothing follows.
    rho = ipl.implied_rewards(jnp.ones((2, 15)), jnp.ones(15), 0.99)
    np.testing.assert_allclose(rho, np.full((2, 15), 0.01), rtol=1e-4)
    np.testing.assert_allclose(rho.sum(axis=1), [0.15, 0.15], rtol=1e-4)
    found = ipl.implied_rewards(jnp.ones(2), jnp.ones(2), jnp.array([0.99, 0.0]))
    np.testing.assert_allclose(found, [0.01, 1.0], rtol=1e-4)
    grad = jax.grad(lambda v: jnp.sum(ipl.implied_rewards(jnp.ones(2), v, 0.99)))(jnp.ones(2))
    assert not grad.any()


def test_preferences_of_implied_rewards() -> None:
    # Second minus first 1.5: log(1 + exp(-1.5)); a tie of equal sums: log 2.
    scores, labels = jnp.array([[1.5, 3.0], [2.0, 2.0]]), jnp.array([1.0, 0.5])
    found = losses.preference_loss(scores, labels)
    np.testing.assert_allclose(found, [0.20141, 0.69315], atol=1e-5)


def test_expectile_loss_by_hand() -> None:
    assert losses.expectile_loss(jnp.array([1.0]), 0.75) == close(0.75)
    assert losses.expectile_loss(jnp.array([-2.0]), 0.75) == close(1.0)  # 0.25 * 4


def test_weights_of_segments_and_replay() -> None:
    # Means 2 and 10 of the labelled segments and of a replay batch of two; of both critics alike.
    arrays = jnp.array([1.0, 2.0, 3.0, 8.0, 12.0])
    assert ipl.weighted(jnp.mean, 2, 0.25, arrays) == close(0.75 * 2 + 0.25 * 10)
    assert ipl.weighted(jnp.mean, 2, 0.25, jnp.stack([arrays, arrays])) == close(4.0)
    assert ipl.weighted(jnp.mean, 0, 0.25, arrays) == close(26 / 5)
    # c = 3 times the square of 0.1 everywhere, however it is weighed.
    for num_replay in (0, 2):
        square = ipl.weighted(lambda rho: jnp.mean(rho**2), num_replay, 0.5, jnp.full((2, 5), 0.1))
        assert 3 * square == close(0.03)


def test_targets_are_clipped_to_the_regularisers_range() -> None:
    # 1 / (3 * 0.01) = 33.333.
    found = ipl.clip_targets(jnp.array([-40.0, 5.0, 40.0]), 3.0, 0.99)
    np.testing.assert_allclose(found, [-33.3333, 5.0, 33.3333], rtol=1e-4)


def test_shapes_that_would_broadcast_raise() -> None:
    one, three = jnp.zeros(1), jnp.zeros(3)
    with pytest.raises(AssertionError):
        losses.weighted_cloning_loss(three, one)
    with pytest.raises(AssertionError):
        ipl.implied_rewards(three, one, 0.99)
    batch, state = make_batch(WITH_REPLAY), fresh(WITH_REPLAY)
    pairs = batch.segment_pairs
    for broken in (
        batch.replace(labels=batch.labels[:1]),
        batch.replace(labels=batch.labels[:, None]),
        batch.replace(segment_pairs=pairs.replace(observations=pairs.observations[:, :, 1:])),
        batch.replace(segment_pairs=pairs.replace(terminations=pairs.terminations[..., None])),
    ):
        with pytest.raises(AssertionError):
            ipl.update_step(WITH_REPLAY, state, broken)


# The update.


@both
def test_an_update_by_hand(config: ipl.Config) -> None:
    state, metrics = ipl.update_step(config, constant_state(config), make_batch(config))
    # V = 0.5 and u = 1.5 - 0.5 = 1 > 0: V rises to 1. The critics read the new one: rho is
    # 1 - 0.9 * 1 = 0.1 and 2 - 0.9 = 1.1, on average squared (0.01 + 1.21) / 2. All segments
    # are equally good: log 2. The advantage is 1.5 - 1, of weight exp(1.5).
    assert metrics == {
        "value/loss": close(0.75),
        "value/v_mean": close(0.5),
        "critic/loss": close(0.693147 + 3 * 0.61),
        "critic/preference_loss": close(0.693147),
        "critic/implied_reward_square": close(0.61),
        "critic/accuracy": 0,  # one strict label, and no segment above the other
        "critic/q_mean": close(1.5),
        "actor/loss": close(4.48169 * 4.17575),  # log pi as in `test_iql.py`
        "actor/advantage_mean": close(0.5),
        "actor/weight_mean": close(4.48169),
    }
    assert state.step == 1
    assert bias_of(state.value.params) == close([1.0])
    # Only the squares move the critics: the preference looks at differences.
    assert bias_of(state.critics.params) == close([1 - RATE, 2 - RATE])
    expected = [0.75 * 3 + 0.25 * 0.5, 0.75 * 1.5 + 0.25 * 1.5]
    assert bias_of(state.target_critic_params) == close(expected)
    assert bias_of(state.actor.params["mean"]) == close([RATE] * ACTION_DIM)
    assert state.actor.params["log_std"].tolist() == close([-RATE] * ACTION_DIM)


def test_a_termination_ends_what_follows() -> None:
    # rho is Q: 1 and 2, squared on average 2.5.
    state, batch = constant_state(WITH_REPLAY), make_batch(WITH_REPLAY, terminations=True)
    _, metrics = ipl.update_step(WITH_REPLAY, state, batch)
    assert metrics["critic/implied_reward_square"] == close(2.5)


def test_a_clipped_target() -> None:
    # The new V is 30.5, but kept at 1 / (3 * 0.1); rho is 1 - 3 and 2 - 3.
    state = constant_state(WITHOUT_REPLAY, targets=(50.0, 50.0), value=30.0)
    _, metrics = ipl.update_step(WITHOUT_REPLAY, state, make_batch(WITHOUT_REPLAY))
    assert metrics["critic/implied_reward_square"] == close(2.5)


def test_the_replay_batch_counts_as_its_weight_says() -> None:
    # Only the replay batch is terminal: its rho are 1 and 2, squared 2.5, the others' 0.61.
    batch, terminal = (make_batch(WITH_REPLAY, terminations=ends) for ends in (False, True))
    batch = batch.replace(replay=terminal.replay)
    for weight in (0.0, 0.25, 1.0):
        state = constant_state(WITH_REPLAY, replay_weight=weight)
        _, metrics = ipl.update_step(WITH_REPLAY, state, batch)
        expected = (1 - weight) * 0.61 + weight * 2.5
        assert metrics["critic/implied_reward_square"] == close(expected)


@both
def test_each_loss_moves_its_own_network_only(config: ipl.Config) -> None:
    state, batch = fresh(config), make_batch(config)
    after, _ = ipl.update_step(config, state, batch)
    for name in ("value", "critics", "actor"):
        assert not same(getattr(after, name), getattr(state, name))
    # Other labels: V and the policy don't learn from them.
    other, metrics = ipl.update_step(config, state, batch.replace(labels=1 - batch.labels))
    assert not same(other.critics.params, after.critics.params)
    assert same((other.value, other.actor), (after.value, after.actor))
    assert metrics["critic/accuracy"] in (0, 1)
    # Other critics: V and the policy look at the target critics.
    critics = jax.tree.map(lambda leaf: 2 * leaf, state.critics.params)
    changed = state.replace(critics=state.critics.replace(params=critics))
    other, _ = ipl.update_step(config, changed, batch)
    assert same((other.value, other.actor), (after.value, after.actor))
    # Another beta: the weights hold V as a constant.
    swept = state.swept.replace(temperature=jnp.float32(9.0))
    other, _ = ipl.update_step(config, state.replace(swept=swept), batch)
    assert not same(other.actor.params, after.actor.params)
    assert same((other.value, other.critics), (after.value, after.critics))


# The data.

LENGTH, LABELLED = 25, (0, 30)  # of a segment; the steps at which the two labelled ones start


def store_of_steps(unlabelled: bool) -> Any:
    """One episode whose observations are step numbers, and one pair of its segments."""
    steps = 60
    episode = Episode(
        observations=np.arange(steps + 1.0)[:, None],
        actions=np.zeros((steps, 1)),
        rewards=np.zeros(steps),
        terminations=np.zeros(steps, bool),
    )
    data = from_episodes([episode], "steps")
    store, view = to_device(data, LENGTH)
    store = store.replace(observations=jnp.asarray(data.observations))
    pairs = LabelledPairs(jnp.array([LABELLED], jnp.int32), jnp.ones(1), LENGTH)
    store, (view,) = with_pairs(store, [view], [pairs])
    if not unlabelled:
        none = jnp.zeros(0, jnp.int32)
        store = store.replace(transition_rows=none, segment_rows=none)
        view = view.replace(num_transitions=jnp.int32(0), num_segments=jnp.int32(0))
    return store, view


def sampled(config: ipl.Config, unlabelled: bool = True) -> ipl.Batch:
    """The batches of 200 updates."""
    store, view = store_of_steps(unlabelled)
    sample = functools.partial(ipl.sample, config, jax.random.key(0), store=store, view=view)
    return jax.jit(jax.vmap(sample))(step=jnp.arange(200))


def test_a_crop_is_16_rows_from_one_start_of_0_to_8() -> None:
    batches = sampled(ipl.Config(num_pairs=2, replay_batch=4))
    rows = np.asarray(batches.segment_pairs.observations)[..., 0]
    assert rows.shape == (200, 2, 2, 16)
    assert batches.segment_pairs.actions.shape == (200, 2, 2, 15, 1)
    starts = rows[..., 0] - LABELLED
    assert set(starts.ravel().tolist()) == set(range(9))
    # One start for all pairs and segments of an update, and rows in a row from it.
    assert (starts == starts[:, :1, :1]).all()
    assert (rows == rows[..., :1] + np.arange(16)).all()
    replay = np.asarray(batches.replay.observations)
    assert replay.shape == (200, 4, 1)
    assert len(np.unique(replay)) > 50


def test_a_crop_may_be_the_whole_segment() -> None:
    rows = sampled(ipl.Config(num_pairs=1, crop_rows=LENGTH)).segment_pairs.observations[..., 0]
    np.testing.assert_array_equal(rows[:, 0, :, 0], [LABELLED] * 200)


def test_without_a_replay_batch_no_unlabelled_data_are_needed() -> None:
    batches = sampled(ipl.Config(num_pairs=1, replay_batch=0), unlabelled=False)
    assert batches.replay is None
    assert np.isfinite(batches.segment_pairs.observations).all()


def test_a_crop_longer_than_its_segment_is_refused() -> None:
    with pytest.raises(InputError, match=r"^crop_rows=16: expected at most segment_length=15$"):
        ipl.Config(segment_length=15)


def test_defaults() -> None:
    init = functools.partial(ipl.init, ipl.Config(), observation_dim=39, action_dim=4)
    state = jax.eval_shape(init, jax.random.key(0))

    def count(params: Any) -> int:
        return sum(leaf.size for leaf in jax.tree.leaves(params))

    # Three hidden layers of 256: of each layer weights and biases; the actor's four log_std.
    inner = 2 * (256 * 256 + 256)
    assert count(state.critics.params) == 2 * (43 * 256 + 256 + inner + 256 + 1)
    assert count(state.value.params) == 39 * 256 + 256 + inner + 256 + 1
    assert count(state.actor.params) == 39 * 256 + 256 + inner + 4 * 256 + 4 + 4
    assert vars(ipl.Swept()) == {
        "regularisation": 3.0,
        "replay_weight": 0.5,
        "expectile": 0.75,
        "temperature": 3.0,
        "discount": 0.99,
        "tau": 0.005,
    }


def test_where_networks_start() -> None:
    state = fresh(WITH_REPLAY)
    assert not state.actor.params["log_std"].any()
    assert same(state.critics.params, state.target_critic_params)
    layer = state.critics.params["params"]["hidden_0"]
    kernel = np.asarray(layer["kernel"])
    np.testing.assert_allclose(kernel[0].T @ kernel[0], np.eye(4), atol=1e-5)
    assert not np.array_equal(kernel[0], kernel[1])
    assert not np.asarray(layer["bias"]).any()
