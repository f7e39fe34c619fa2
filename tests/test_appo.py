"""APPO's update: where gradients go, and a chain solved by hand."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from appo_jax import appo, training
from appo_jax.networks import forward_ensemble, state_action
from appo_jax.trainable import Trainable
from appo_jax.types import SegmentPairs, Store, Transitions, View

CONFIG = appo.Config(hidden_layers=2, hidden_dim=8, batch_size=6, num_pairs=3, segment_length=4)
OBSERVATION_DIM, ACTION_DIM = 5, 2
jitted_init = jax.jit(appo.init, static_argnums=(0, 2, 3))


def random_batch(seed: int = 0, terminations: bool = False) -> appo.Batch:
    keys = jax.random.split(jax.random.key(seed), 6)
    shape = (CONFIG.num_pairs, 2, CONFIG.segment_length)
    return appo.Batch(
        transitions=Transitions(
            observations=jax.random.normal(keys[0], (CONFIG.batch_size, OBSERVATION_DIM)),
            actions=jax.random.uniform(keys[1], (CONFIG.batch_size, ACTION_DIM), minval=-1),
            # No loss of APPO reads these.
            rewards=jnp.full(CONFIG.batch_size, jnp.nan),
            next_observations=jnp.full((CONFIG.batch_size, OBSERVATION_DIM), jnp.nan),
            terminations=jnp.ones(CONFIG.batch_size, bool),
        ),
        segment_pairs=SegmentPairs(
            observations=jax.random.normal(keys[2], (*shape[:2], shape[2] + 1, OBSERVATION_DIM)),
            actions=jax.random.uniform(keys[3], (*shape, ACTION_DIM), minval=-1),
            rewards=jax.random.uniform(keys[4], shape),
            terminations=jnp.full(shape, terminations),
        ),
    )


def init(**swept: Any) -> appo.TrainState:
    # One trace for all: arrays, which are taken as they are.
    arrays = appo.Swept().on_device().replace(**jax.tree.map(jnp.float32, swept))
    return jitted_init(CONFIG, jax.random.key(0), OBSERVATION_DIM, ACTION_DIM, **vars(arrays))


def same(first: Any, second: Any) -> bool:
    return all(
        np.array_equal(a, b)
        for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True)
    )


def test_default_networks_are_the_papers() -> None:
    init_defaults = functools.partial(appo.init, appo.Config(), observation_dim=39, action_dim=4)
    state = jax.eval_shape(init_defaults, jax.random.key(0))
    # Three hidden layers of 256: 43*256 + 256*256*2 + 256 weights, 256*3 + 1 biases.
    critic = sum(leaf.size for leaf in jax.tree.leaves(state.critics.params))
    assert critic == 2 * (43 * 256 + 2 * 256 * 256 + 256 + 3 * 256 + 1)
    actor = sum(leaf.size for leaf in jax.tree.leaves(state.actor.params))
    assert actor == 39 * 256 + 2 * 256 * 256 + 256 * 8 + 3 * 256 + 8
    assert vars(appo.Swept()) == {"lam": 0.03, "discount": 0.99, "tau": 0.001}


def test_where_networks_start() -> None:
    state = init()
    kernel = state.critics.params["params"]["hidden_0"]["kernel"]
    assert not np.array_equal(kernel[0], kernel[1])
    assert same(state.critics.params, state.target_critic_params)
    assert jnp.exp(state.log_temperature.params) == pytest.approx(1.0)


def test_the_critic_loss_moves_the_critics_only() -> None:
    # With tau 0 the target critics stay, so nothing of lam or the rewards can reach V.
    batch = random_batch()
    other = batch.replace(
        segment_pairs=batch.segment_pairs.replace(rewards=-batch.segment_pairs.rewards)
    )
    one, _ = appo.update_step(CONFIG, init(tau=0.0, lam=0.03), batch)
    two, _ = appo.update_step(CONFIG, init(tau=0.0, lam=3.0), other)
    assert not same(one.critics.params, two.critics.params)
    assert same(one.value.params, two.value.params)
    assert same(one.target_critic_params, init().target_critic_params)
    assert not same(one.value.params, init().value.params)


def test_target_critics_follow_at_rate_tau() -> None:
    state, _ = appo.update_step(CONFIG, init(tau=0.25), random_batch())
    expected = jax.tree.map(
        lambda old, new: 0.75 * old + 0.25 * new, init().critics.params, state.critics.params
    )
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7),
        state.target_critic_params,
        expected,
    )


def test_the_entropy_term_of_the_value_by_hand() -> None:
    # All parameters 0: V and Q are 0, pi is tanh of a standard normal e, and alpha is 1. The target
    # is -log pi; log pi sums -e^2 / 2 - log(2 pi) / 2 - log(1 - tanh^2 e) over an action's numbers.
    state, batch = jax.tree.map(jnp.zeros_like, init(tau=0.0)), random_batch()
    state = state.replace(key=init().key, swept=init(tau=0.0).swept)
    _, noise, _ = appo.draw_noise(state.key, batch.transitions.actions.shape)
    terms = 2 * jnp.log(jnp.cosh(noise)) - noise**2 / 2 - jnp.log(2 * jnp.pi) / 2
    config = dataclasses.replace(CONFIG, entropy_in_value=True)
    _, metrics = appo.update_step(config, state, batch)
    assert metrics["value/loss"] == pytest.approx(float(jnp.mean(terms.sum(axis=1) ** 2)), rel=1e-4)
    assert appo.update_step(CONFIG, state, batch)[1]["value/loss"] == 0


def test_polyak_by_hand() -> None:
    # 0.001 * 1 = 0.001; 0.999 * 0.001 + 0.001 = 0.001999.
    target = jnp.float32(0)
    seen = []
    for _ in range(2):
        target = optax.incremental_update(jnp.float32(1), target, 0.001)
        seen.append(float(target))
    assert seen == [pytest.approx(0.001), pytest.approx(0.001999)]


def test_terminations_cut_the_bootstrap() -> None:
    # If every step terminates, V(s') and the discount are out of the critic loss.
    losses = [
        float(appo.update_step(CONFIG, init(discount=discount), batch)[1]["critic/loss"])
        for batch in (random_batch(terminations=True), random_batch(terminations=False))
        for discount in (0.1, 0.9)
    ]
    assert losses[0] == losses[1]
    assert losses[2] != losses[3]


def test_what_stands_behind_a_segments_end_moves_nothing() -> None:
    batch = random_batch()
    pairs = batch.segment_pairs
    is_step = jnp.broadcast_to(jnp.arange(4) < 2, pairs.rewards.shape)
    cut = pairs.replace(is_step=is_step)
    other = cut.replace(
        observations=pairs.observations.at[:, :, 3:].set(7.0),
        actions=pairs.actions.at[:, :, 2:].set(-1.0),
        rewards=pairs.rewards.at[:, :, 2:].set(5.0),
        terminations=pairs.terminations.at[:, :, 2:].set(True),
    )
    one, two, inside = (
        appo.update_step(CONFIG, init(), batch.replace(segment_pairs=segments))[0]
        for segments in (cut, other, cut.replace(rewards=pairs.rewards.at[:, :, 1].set(5.0)))
    )
    assert same(one.critics.params, two.critics.params)
    assert not same(one.critics.params, inside.critics.params)


def test_arrays_that_do_not_fit_raise() -> None:
    batch, state = random_batch(), init()
    pairs = batch.segment_pairs
    for broken in (
        pairs.replace(rewards=pairs.rewards[..., :1]),
        pairs.replace(rewards=pairs.rewards[:1]),
        pairs.replace(terminations=pairs.terminations[..., :-1]),
        pairs.replace(observations=pairs.observations[:, :, :-1]),
    ):
        with pytest.raises(AssertionError):
            appo.update_step(CONFIG, state, batch.replace(segment_pairs=broken))
    flat = batch.transitions.replace(actions=batch.transitions.actions[:, 0])
    with pytest.raises(AssertionError):
        appo.update_step(CONFIG, state, batch.replace(transitions=flat))


def test_the_conservative_term_lowers_q_where_the_policy_goes() -> None:
    batch = random_batch()

    def last_gap(lam: float) -> float:
        state = init(lam=lam)
        for _ in range(1000):
            state, metrics = appo.update_step(CONFIG, state, batch)
        return float(metrics["critic/adversarial"])

    assert last_gap(1.0) < last_gap(0.0) - 0.1


@pytest.mark.parametrize(("below", "sign"), [(5, 1), (-5, -1)])
def test_lambda_goes_where_the_target_wants_it(below: int, sign: int) -> None:
    fixed, batch = init(), random_batch()
    _, metrics = appo.update_step(CONFIG, fixed, batch)
    # The policy is worth L_adv / (1 - gamma) more than the data.
    worth = metrics["critic/adversarial"] / (1 - fixed.swept.discount)
    target = float(worth / metrics["critic/q_std"]) - below
    config = dataclasses.replace(CONFIG, adversarial_target=target)
    one = jnp.float32(0)
    adam = optax.adam(3e-4)
    state = fixed.replace(log_lam_factor=Trainable.create(one, adam))
    state, metrics = appo.update_step(config, state, batch)
    # Adam's first step is its rate, whatever the gradient. The update still has the old lambda.
    assert state.log_lam_factor.params == pytest.approx(sign * 3e-4, rel=1e-5)
    assert metrics["critic/lam"] == pytest.approx(0.03)
    _, metrics = appo.update_step(config, state, batch)
    assert metrics["critic/lam"] == pytest.approx(0.03 * np.exp(sign * 3e-4), rel=1e-6)
    expected, _ = appo.update_step(CONFIG, fixed, batch)
    np.testing.assert_allclose(
        jax.tree.leaves(state.critics.params)[0],
        jax.tree.leaves(expected.critics.params)[0],
        rtol=1e-6,
    )
    assert state.swept.lam == expected.swept.lam


def test_a_two_state_chain_solved_by_hand() -> None:
    # States A and B alternate whatever the action; r(A) = 1, r(B) = 0, discount 0.5, segments of
    # one step. Where E = 0, Q(A) - 0.5 V(B) - 1 = Q(B) - 0.5 V(A), and V = Q, so the difference
    # d = Q(A) - Q(B) is 1 - 0.5 d: d = 2/3. The level of Q is free.
    rows = 401
    states = jnp.arange(rows) % 2
    store = Store(
        observations=jax.nn.one_hot(states, 2),
        actions=jax.random.uniform(jax.random.key(0), (rows, 1), minval=-1),
        terminations=jnp.zeros(rows, bool),
        transition_rows=jnp.arange(rows - 1),
        segment_rows=jnp.arange(rows - 1),
        rewards=1.0 - states,
        pair_rows=jnp.zeros((0, 2), jnp.int32),
        pair_labels=jnp.zeros(0),
        segment_length=1,
    )
    view = View(*(jnp.int32(number) for number in (0, rows - 1, 0, rows - 1, 0, 0, 0, 0)))
    config = appo.Config(
        hidden_layers=1,
        hidden_dim=32,
        batch_size=64,
        num_pairs=64,
        segment_length=1,
        critic_learning_rate=3e-3,
        value_learning_rate=3e-3,
    )
    state = jitted_init(config, jax.random.key(1), 2, 1, lam=0.0, discount=0.5, tau=0.05)

    state, _ = training.train(appo, config, 2000, state, jax.random.key(2), store, view)
    actions = jnp.linspace(-1, 1, 9)[:, None]
    q = [
        forward_ensemble(
            appo._network(config, 1),
            state.critics.params,
            state_action(jnp.tile(jnp.eye(2)[s], (9, 1)), actions),
        )
        for s in (0, 1)
    ]
    difference = (q[0] - q[1])[..., 0]
    np.testing.assert_allclose(difference, np.full((2, 9), 2 / 3), atol=0.1)
