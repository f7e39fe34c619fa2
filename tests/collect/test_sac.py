"""SAC's update: known answers, who moves whom, and a bandit and a chain solved by hand."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from appo_jax.collect import sac
from appo_jax.types import Transitions

CONFIG = sac.Config(hidden_layers=1, hidden_dim=8, batch_size=6)
OBSERVATION_DIM, ACTION_DIM = 5, 2
jitted_init = jax.jit(sac.init, static_argnums=(0, 2, 3))


def random_batch(seed: int = 0) -> Transitions:
    keys = jax.random.split(jax.random.key(seed), 4)
    shape = (CONFIG.batch_size, OBSERVATION_DIM)
    return Transitions(
        observations=jax.random.normal(keys[0], shape),
        actions=jax.random.uniform(keys[1], (CONFIG.batch_size, ACTION_DIM), minval=-1),
        rewards=jax.random.uniform(keys[2], shape[:1]),
        next_observations=jax.random.normal(keys[3], shape),
        terminations=jnp.zeros(shape[:1], bool),
    )


def init(config: sac.Config = CONFIG, seed: int = 0, **numbers: float) -> sac.TrainState:
    return jitted_init(config, jax.random.key(seed), OBSERVATION_DIM, ACTION_DIM, **numbers)


def same(first: Any, second: Any) -> bool:
    return all(
        np.array_equal(a, b)
        for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True)
    )


def test_log_std_map() -> None:
    # -5 + 3.5 (tanh(s) + 1): the middle at 0, the bounds at infinity.
    found = sac.log_std_of(jnp.array([0.0, jnp.inf, -jnp.inf]), -5.0, 2.0)
    np.testing.assert_allclose(found, [-1.5, 2.0, -5.0])


def test_target_by_hand() -> None:
    # Minimum over the critics 2 and 4; minus 0.1 log pi = 0.1 * -1: 2.1 and 4.1. Discount 0.5; the
    # second step ends in a terminal state: 1 + 0.5 * 2.1 = 2.05, and 3.
    found = sac.td_target(
        jnp.array([1.0, 3.0]),
        jnp.array([False, True]),
        jnp.array([[2.0, 5.0], [3.0, 4.0]]),
        jnp.array([-1.0, -1.0]),
        0.5,
        0.1,
    )
    np.testing.assert_allclose(found, [2.05, 3.0], rtol=1e-6)


def test_critic_loss_by_hand() -> None:
    # Errors (1, 3) and (0, 2): mean squares 5 and 2, summed over the critics.
    q, target = jnp.array([[2.0, 4.0], [1.0, 3.0]]), jnp.array([1.0, 1.0])
    assert sac.critic_loss(q, target) == pytest.approx(7.0)
    with pytest.raises(AssertionError):
        sac.critic_loss(q, target[:, None])


@pytest.mark.parametrize(("log_prob", "sign"), [(-1.0, -1), (7.0, 1)])
def test_temperature_loss_by_hand(log_prob: float, sign: int) -> None:
    # alpha (-log pi - target), target -4 and alpha 0.1: 0.1 (1 + 4) = 0.5, and 0.1 (-7 + 4) = -0.3.
    # The loss is alpha times a constant, so its gradient to log alpha is the loss itself.
    arguments = (jnp.log(0.1), jnp.full(3, log_prob), -4.0)
    value, grad = jax.value_and_grad(sac.temperature_loss)(*arguments)
    assert value == pytest.approx({-1.0: 0.5, 7.0: -0.3}[log_prob], rel=1e-5)
    assert grad == pytest.approx(value)
    assert np.sign(-grad) == sign  # entropy below its target raises alpha


def test_start() -> None:
    full = jax.eval_shape(lambda: sac.init(sac.Config(), jax.random.key(0), 39, 4))
    critic = sum(leaf.size for leaf in jax.tree.leaves(full.critics.params))
    assert critic == 2 * (43 * 256 + 2 * 256 * 256 + 256 + 3 * 256 + 1)
    state = init()
    layer = state.actor.params["params"]["hidden_0"]
    np.testing.assert_allclose(layer["kernel"] @ layer["kernel"].T, np.eye(5), atol=1e-5)
    assert not np.any(layer["bias"])
    assert same(state.critics.params, state.target_critic_params)
    first, second = state.critics.params["params"]["output"]["kernel"]
    assert not np.array_equal(first, second)
    assert jnp.exp(state.log_temperature.params) == pytest.approx(0.1)
    assert (state.discount, state.tau) == (pytest.approx(0.99), pytest.approx(0.005))


def test_targets_follow_on_every_second_update() -> None:
    state = init()
    for update in range(1, 5):
        before = state.target_critic_params
        state, _ = sac.update_step(CONFIG, state, random_batch(update))
        assert state.step == update
        assert same(before, state.target_critic_params) == (update % 2 == 1)
    expected = jax.tree.map(
        lambda new, old: 0.005 * new + 0.995 * old, state.critics.params, before
    )
    for a, b in zip(
        jax.tree.leaves(state.target_critic_params), jax.tree.leaves(expected), strict=True
    ):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    ("rate", "moved"),
    [
        ("actor_learning_rate", "actor"),
        ("critic_learning_rate", "critics"),
        ("temperature_learning_rate", "log_temperature"),
    ],
)
def test_each_rate_moves_its_own(rate: str, moved: str) -> None:
    start = init()
    with_rate, _ = sac.update_step(CONFIG, start, random_batch())
    slow = dataclasses.replace(CONFIG, **{rate: 1e-30})
    without, _ = sac.update_step(slow, start, random_batch())
    for name in ("actor", "critics", "log_temperature"):
        before, after, slowly = (getattr(one, name).params for one in (start, with_rate, without))
        assert not close(after, before)
        assert close(slowly, before) == (name == moved)


def close(first: Any, second: Any) -> bool:
    """Whether no number differs by more than a rate of next to nothing moves it."""
    same_leaves = jax.tree.map(lambda a, b: jnp.allclose(a, b, rtol=0, atol=1e-20), first, second)
    return all(jax.tree.leaves(same_leaves))


def test_wrong_shapes_raise() -> None:
    batch = random_batch()
    for change in (
        {"rewards": batch.rewards[:, None]},
        {"terminations": batch.terminations[:3]},
        {"next_observations": batch.next_observations[:, :3]},
    ):
        with pytest.raises(AssertionError):
            sac.update_step(CONFIG, init(), batch.replace(**change))


def test_exploration_is_noisy_and_bounded() -> None:
    observations = jax.random.normal(jax.random.key(1), (400, OBSERVATION_DIM))
    state = init()
    draws = [sac.explore(CONFIG, state, jax.random.key(i), observations) for i in range(2)]
    assert draws[0].shape == (400, ACTION_DIM)
    assert np.abs(draws).max() <= 1
    assert np.mean(draws[0] == draws[1]) < 0.01
    np.testing.assert_array_equal(
        draws[0], sac.explore(CONFIG, state, jax.random.key(0), observations)
    )
    # Log standard deviation near -1.5 at the start: the noise before the tanh is about 0.22.
    means = sac.act(CONFIG, state, observations)
    inside = (np.abs(draws[0]) < 0.9) & (np.abs(means) < 0.9)
    noise = np.arctanh(draws[0][inside]) - np.arctanh(means[inside])
    assert inside.mean() > 0.3
    assert 0.05 < noise.std() < 0.8


@functools.partial(jax.jit, static_argnames=("config", "make", "num_updates"))
def train(config: sac.Config, state: sac.TrainState, make: Any, num_updates: int) -> Any:
    def update(state: sac.TrainState, number: jax.Array) -> tuple[sac.TrainState, None]:
        return sac.update_step(config, state, make(jax.random.key(number)))[0], None

    return jax.lax.scan(update, state, jnp.arange(num_updates))[0]


PROBE = sac.Config(
    hidden_layers=1,
    hidden_dim=32,
    batch_size=64,
    actor_learning_rate=3e-3,
    critic_learning_rate=3e-3,
    initial_temperature=0.01,
    temperature_learning_rate=1e-6,
)


def bandit(key: jax.Array) -> Transitions:
    actions = jax.random.uniform(key, (64, 1), minval=-1)
    state = jnp.ones((64, 1))
    rewards = -jnp.square(actions[:, 0] - 0.5)
    return Transitions(state, actions, rewards, state, jnp.ones(64, bool))


def test_bandit() -> None:
    # One state, reward -(a - 0.5)^2, over at once: Q(a) is the reward, the best action 0.5.
    state = train(PROBE, jitted_init(PROBE, jax.random.key(0), 1, 1), bandit, 1500)
    assert sac.act(PROBE, state, jnp.ones((1, 1)))[0, 0] == pytest.approx(0.5, abs=0.1)


def chain(key: jax.Array) -> Transitions:
    second = jax.random.bernoulli(key, shape=(64, 1)).astype(jnp.float32)
    actions = jax.random.uniform(key, (64, 1), minval=-1)
    return Transitions(
        observations=second,
        actions=actions,
        rewards=second[:, 0],
        next_observations=jnp.ones((64, 1)),
        terminations=second[:, 0] > 0,
    )


@pytest.mark.slow
def test_chain() -> None:
    # State 0 leads to state 1 without a reward; state 1 gives 1 and ends. Discount 0.5, no
    # entropy to speak of: Q(1) = 1, Q(0) = 0.5.
    config = dataclasses.replace(PROBE, initial_temperature=1e-6, target_interval=1)
    start = jitted_init(config, jax.random.key(0), 1, 1, discount=0.5, tau=0.1)
    state = train(config, start, chain, 1000)
    network = sac._network(config, 1)
    inputs = jnp.array([[0.0, 0.0], [1.0, 0.0]])
    q = sac.forward_ensemble(network, state.critics.params, inputs)[..., 0]
    np.testing.assert_allclose(q, [[0.5, 1.0]] * 2, atol=0.1)
