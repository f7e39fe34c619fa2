"""APPO's update: where gradients go, what the swept numbers do, and a chain solved by hand."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from appo_jax import appo
from appo_jax.types import Batch, SegmentPairs, Store, Transitions, View

CONFIG = appo.Config(hidden_layers=2, hidden_dim=8, batch_size=6, num_pairs=3, segment_length=4)
OBSERVATION_DIM, ACTION_DIM = 5, 2


def random_batch(seed: int = 0, terminations: bool = False) -> Batch:
    keys = jax.random.split(jax.random.key(seed), 6)
    shape = (CONFIG.num_pairs, 2, CONFIG.segment_length)
    return Batch(
        transitions=Transitions(
            observations=jax.random.normal(keys[0], (CONFIG.batch_size, OBSERVATION_DIM)),
            actions=jax.random.uniform(keys[1], (CONFIG.batch_size, ACTION_DIM), minval=-1),
        ),
        segment_pairs=SegmentPairs(
            observations=jax.random.normal(keys[2], (*shape[:2], shape[2] + 1, OBSERVATION_DIM)),
            actions=jax.random.uniform(keys[3], (*shape, ACTION_DIM), minval=-1),
            rewards=jax.random.uniform(keys[4], shape),
            terminations=jnp.full(shape, terminations),
        ),
    )


def init(seed: int = 0, config: appo.Config = CONFIG, **numbers: float) -> appo.TrainState:
    return appo.init(config, jax.random.key(seed), OBSERVATION_DIM, ACTION_DIM, **numbers)


def same(first: Any, second: Any) -> bool:
    return all(
        np.array_equal(a, b)
        for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True)
    )


def test_default_networks_are_the_papers() -> None:
    state = appo.init(appo.Config(), jax.random.key(0), 39, 4)
    # Three hidden layers of 256: 43*256 + 256*256*2 + 256 weights, 256*3 + 1 biases.
    critic = sum(leaf.size for leaf in jax.tree.leaves(state.critic_params))
    assert critic == 2 * (43 * 256 + 2 * 256 * 256 + 256 + 3 * 256 + 1)
    actor = sum(leaf.size for leaf in jax.tree.leaves(state.actor_params))
    assert actor == 39 * 256 + 2 * 256 * 256 + 256 * 8 + 3 * 256 + 8
    assert same(state.critic_params, state.target_critic_params)
    assert (state.lam, state.discount, state.tau) == (
        pytest.approx(0.03),
        pytest.approx(0.99),
        pytest.approx(0.001),
    )
    assert jnp.exp(state.log_temperature) == pytest.approx(1.0)


def test_critics_differ_and_no_two_leaves_share_a_buffer() -> None:
    state = init()
    kernel = state.critic_params["params"]["hidden_0"]["kernel"]
    assert not np.array_equal(kernel[0], kernel[1])
    donating = jax.jit(lambda state: jax.tree.map(lambda leaf: leaf, state), donate_argnums=0)
    donating(state)  # would raise for a buffer given twice


def test_the_critic_loss_moves_the_critics_only() -> None:
    # With tau 0 the target critics stay, so nothing of lam or the rewards can reach V.
    batch = random_batch()
    other = batch.replace(
        segment_pairs=batch.segment_pairs.replace(rewards=-batch.segment_pairs.rewards)
    )
    one, _ = appo.update_step(CONFIG, init(tau=0.0, lam=0.03), batch)
    two, _ = appo.update_step(CONFIG, init(tau=0.0, lam=3.0), other)
    assert not same(one.critic_params, two.critic_params)
    assert same(one.value_params, two.value_params)
    assert same(one.target_critic_params, init().target_critic_params)
    assert not same(one.value_params, init().value_params)


def test_target_critics_follow_at_rate_tau() -> None:
    state, _ = appo.update_step(CONFIG, init(tau=0.25), random_batch())
    expected = jax.tree.map(
        lambda old, new: 0.75 * old + 0.25 * new, init().critic_params, state.critic_params
    )
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7),
        state.target_critic_params,
        expected,
    )


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


@pytest.mark.parametrize("field", [f.name for f in dataclasses.fields(appo.Config)])
def test_every_config_field_acts(field: str) -> None:
    value = getattr(CONFIG, field)
    special = {"log_std_min": 0.5, "log_std_max": -3.0, "pairwise_error": False}
    changed = special.get(field, value * 2)
    config = dataclasses.replace(CONFIG, **{field: changed})
    rows = 60
    store = Store(
        observations=jax.random.normal(jax.random.key(1), (rows, OBSERVATION_DIM)),
        actions=jax.random.uniform(jax.random.key(2), (rows, ACTION_DIM)),
        terminations=jnp.zeros(rows, bool),
        transition_rows=jnp.arange(30),
        segment_rows=jnp.arange(30),
        rewards=jnp.ones(rows),
    )
    view = View(*(jnp.int32(number) for number in (0, 30, 0, 30, 0, 0)))

    def program(config: appo.Config) -> str:
        def run(key: jax.Array) -> Any:
            state = init(config=config)
            return appo.update_step(config, state, appo.sample(config, key, store, view))

        return str(jax.make_jaxpr(run)(jax.random.key(0)))

    assert program(CONFIG) == program(CONFIG)
    assert program(CONFIG) != program(config)


@pytest.mark.parametrize("number", ["lam", "discount", "tau"])
def test_swept_numbers_act_without_another_trace(number: str) -> None:
    batch = random_batch()
    appo.update_step(CONFIG, init(), batch)
    traces = appo.update_step._cache_size()
    results = []
    for value in (0.1, 0.7):
        state = init(**{number: value})
        for _ in range(2):
            state, metrics = appo.update_step(CONFIG, state, batch)
        # The metrics: |.| hides a changed V from the critics' gradient as long as no sign flips.
        results.append((metrics, state.target_critic_params))
    assert appo.update_step._cache_size() == traces
    assert not same(*results)


def test_library_use_under_jit_vmap_and_scan() -> None:
    batch = random_batch()

    @jax.jit
    def train(lam: jax.Array) -> tuple[appo.TrainState, jax.Array]:
        state = init(lam=lam)

        def body(state: appo.TrainState, _: None) -> tuple[appo.TrainState, jax.Array]:
            state, metrics = appo.update_step(CONFIG, state, batch)
            return state, metrics["critic/loss"]

        return jax.lax.scan(body, state, length=3)

    lams = jnp.array([0.01, 0.03, 1.0])
    states, losses = jax.vmap(train)(lams)
    assert losses.shape == (3, 3)
    for run, lam in enumerate(lams):
        state = init(lam=lam)
        for step in range(3):
            state, metrics = appo.update_step(CONFIG, state, batch)
            np.testing.assert_allclose(metrics["critic/loss"], losses[run, step], rtol=1e-4)
        jax.tree.map(
            lambda a, b, run=run: np.testing.assert_allclose(a, b[run], rtol=1e-3, atol=1e-5),
            state.actor_params,
            states.actor_params,
        )
    assert states.step.tolist() == [3, 3, 3]


def test_act_is_the_squashed_mean_for_any_leading_shape() -> None:
    state = init()
    observations = jax.random.normal(jax.random.key(3), (7, 2, OBSERVATION_DIM))
    actions = appo.act(CONFIG, state, observations)
    assert actions.shape == (7, 2, ACTION_DIM)
    assert np.abs(actions).max() <= 1
    np.testing.assert_allclose(
        appo.act(CONFIG, state, observations[3, 1]), actions[3, 1], rtol=1e-5
    )
    assert same(appo.act(CONFIG, appo.snapshot(state), observations), actions)
    assert len(jax.tree.leaves(appo.snapshot(state))) == len(jax.tree.leaves(state.actor_params))


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
    config = dataclasses.replace(CONFIG, critic_learning_rate=3e-3)
    batch = random_batch()

    @jax.jit
    def last_gap(lam: jax.Array) -> jax.Array:
        def body(state: appo.TrainState, _: None) -> tuple[appo.TrainState, jax.Array]:
            state, metrics = appo.update_step(config, state, batch)
            return state, metrics["critic/adversarial"]

        return jax.lax.scan(body, init(lam=lam), length=300)[1][-1]

    assert last_gap(1.0) < last_gap(0.0) - 0.1


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
    )
    view = View(*(jnp.int32(number) for number in (0, rows - 1, 0, rows - 1, 0, 0)))
    config = appo.Config(
        hidden_layers=1,
        hidden_dim=32,
        batch_size=64,
        num_pairs=64,
        segment_length=1,
        critic_learning_rate=3e-3,
        value_learning_rate=3e-3,
    )
    state = appo.init(config, jax.random.key(1), 2, 1, lam=0.0, discount=0.5, tau=0.05)

    def body(state: appo.TrainState, key: jax.Array) -> tuple[appo.TrainState, None]:
        return appo.update_step(config, state, appo.sample(config, key, store, view))[0], None

    state, _ = jax.lax.scan(body, state, jax.random.split(jax.random.key(2), 2000))
    actions = jnp.linspace(-1, 1, 9)[:, None]
    q = [
        appo.forward_ensemble(
            appo._critic(config),
            state.critic_params,
            jnp.concatenate([jnp.tile(jnp.eye(2)[s], (9, 1)), actions], axis=1),
        )
        for s in (0, 1)
    ]
    difference = (q[0] - q[1])[..., 0]
    np.testing.assert_allclose(difference, np.full((2, 9), 2 / 3), atol=0.1)
