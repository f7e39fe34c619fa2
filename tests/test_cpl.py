"""CPL's losses by hand, its two phases, and its dropout.

That every setting acts is in `test_learners.py`, a run killed between the phases in
`tests/experiments/runs/test_runner.py`.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from appo_jax import cpl
from appo_jax.types import SegmentPairs

OBSERVATION_DIM, ACTION_DIM, PAIRS, STEPS = 3, 2, 4, 3
RATE = 0.01

close = functools.partial(pytest.approx, rel=1e-4, abs=1e-6)
jitted_init = jax.jit(cpl.init, static_argnums=(0, 2, 3))
# Updates 0 and 1 clone; from 2 on the rate takes four updates to rise.
CONFIG = cpl.Config(
    hidden_layers=1,
    hidden_dim=8,
    num_pairs=PAIRS,
    num_updates=20,
    cloning_share=0.1,
    warmup_share=0.2,
)
SWITCH, WARMUP = 2, 4


def make_batch(labels: tuple[float, ...] = (1.0, 0.0, 0.5, 0.8)) -> cpl.Batch:
    keys = jax.random.split(jax.random.key(1), 2)
    pairs = SegmentPairs(
        observations=jax.random.normal(keys[0], (PAIRS, 2, STEPS + 1, OBSERVATION_DIM)),
        actions=jax.random.uniform(keys[1], (PAIRS, 2, STEPS, ACTION_DIM), minval=-1),
        rewards=jnp.full((PAIRS, 2, STEPS), jnp.nan),  # nobody reads them
        terminations=jnp.zeros((PAIRS, 2, STEPS), bool),
    )
    return cpl.Batch(pairs, jnp.array(labels))


@functools.cache
def trained(num_updates: int) -> cpl.TrainState:
    if num_updates:
        return cpl.update_step(CONFIG, trained(num_updates - 1), make_batch())[0]
    rate = jnp.float32(RATE)
    return jitted_init(CONFIG, jax.random.key(0), OBSERVATION_DIM, ACTION_DIM, learning_rate=rate)


def with_step(state: cpl.TrainState, step: int) -> cpl.TrainState:
    return state.replace(step=jnp.int32(step))


def same(first: Any, second: Any) -> bool:
    leaves = zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True)
    return all(np.array_equal(a, b) for a, b in leaves)


def contrastive(first: float, second: float, label: float, bias: float) -> float:
    return float(cpl.contrastive_loss(jnp.array([[first, second]]), jnp.array([label]), bias))


def test_contrastive_loss_by_hand() -> None:
    # Equal at 0: log 2, whatever label and bias.
    for label in (0.0, 0.5, 1.0):
        assert contrastive(0, 0, label, 0.5) == close(np.log(2))
    # The second is better, -1 against -2: log(1 + exp(-2 + 1)); with b = 0.5 the worse one's
    # is halved, -1 against -1.
    assert contrastive(-2, -1, 1.0, 1.0) == close(0.31326)
    assert contrastive(-2, -1, 1.0, 0.5) == close(np.log(2))
    # A soft label weighs both orders: with b = 1 it is the cross entropy of the label.
    expected = 0.3 * contrastive(-2, -1, 1.0, 1.0) + 0.7 * contrastive(-2, -1, 0.0, 1.0)
    assert contrastive(-2, -1, 0.3, 1.0) == close(expected)
    # The mean of pairs, and huge scores.
    both = cpl.contrastive_loss(jnp.array([[-2.0, -1.0], [0.0, 0.0]]), jnp.ones(2), 1.0)
    assert both == close((0.31326 + np.log(2)) / 2)
    assert contrastive(-1e6, 0, 1.0, 1.0) == 0
    assert contrastive(-1e6, 0, 0.0, 1.0) == close(1e6)


def test_without_bias_it_is_antisymmetric_bradley_terry() -> None:
    # -log sigmoid(x) of the two orders: their difference is the margin.
    assert contrastive(-2, -1, 1.0, 1.0) == contrastive(-1, -2, 0.0, 1.0)
    assert contrastive(-2, -1, 0.0, 1.0) - contrastive(-2, -1, 1.0, 1.0) == close(1.0)
    assert contrastive(-2, -1, 0.0, 0.5) - contrastive(-2, -1, 1.0, 0.5) != close(1.0)


def test_log_prob_by_hand() -> None:
    # -(0.5^2 + 1^2), of two dimensions.
    found = cpl.log_prob(jnp.array([[0.5, 0.0]]), jnp.array([[0.0, 1.0]]))
    np.testing.assert_allclose(found, [-1.25])


def test_shapes_that_would_broadcast_raise() -> None:
    with pytest.raises(AssertionError):
        cpl.contrastive_loss(jnp.zeros((3, 2)), jnp.zeros(1), 0.5)
    with pytest.raises(AssertionError):
        cpl.contrastive_loss(jnp.zeros((3, 3)), jnp.zeros(3), 0.5)
    with pytest.raises(AssertionError):
        cpl.log_prob(jnp.zeros((3, 2)), jnp.zeros(2))


def test_an_update_by_hand() -> None:
    """A network of zeros acts 0 whatever is dropped; all actions are 1/2 in two dimensions.

    log pi is -1/2 at each of three steps, so both scores are 0.1 * -1.5 = -0.15: with b = 1/2 the
    loss is log(1 + exp(-0.075 + 0.15)), with either label. The cloning loss is 1/2.
    """
    state = trained(0)
    zeros = jax.tree.map(jnp.zeros_like, state.actor.params)
    state = state.replace(actor=state.actor.replace(params=zeros))
    state = state.replace(swept=state.swept.replace(bc_coefficient=jnp.float32(2.0)))
    batch = make_batch()
    half = jnp.full_like(batch.segment_pairs.actions, 0.5)
    batch = batch.replace(segment_pairs=batch.segment_pairs.replace(actions=half))
    loss = np.log1p(np.exp(0.075))
    for step, total, rate in ((1, 0.5, RATE), (2, loss + 2 * 0.5, RATE / WARMUP)):
        after, metrics = cpl.update_step(CONFIG, with_step(state, step), batch)
        assert metrics == {
            "actor/loss": close(total),
            "actor/cloning_loss": close(0.5),
            "actor/contrastive_loss": close(loss),
            "actor/accuracy": 0,
            "actor/learning_rate": close(rate),
        }
        # Adam's first step, towards the actions.
        found = after.actor.params["params"]["output"]["bias"]
        np.testing.assert_allclose(found, [rate, rate], rtol=1e-3)


def test_cloning_does_not_look_at_labels() -> None:
    for step in (0, SWITCH - 1):
        state = with_step(trained(0), step)
        one, other = (
            cpl.update_step(CONFIG, state, make_batch(labels))[0]
            for labels in ((1.0, 0.0, 0.5, 0.8), (0.0, 1.0, 1.0, 0.0))
        )
        assert same(one.actor, other.actor)
    state = with_step(trained(0), SWITCH)
    one, other = (
        cpl.update_step(CONFIG, state, make_batch(labels))[0]
        for labels in ((1.0, 0.0, 0.5, 0.8), (0.0, 1.0, 1.0, 0.0))
    )
    assert not same(one.actor.params, other.actor.params)


def test_the_optimiser_starts_afresh_with_the_second_phase() -> None:
    counts = [int(trained(done).actor.optimiser[0].count) for done in range(6)]
    assert counts == [0, 1, 2, 1, 2, 3]
    # What the first phase left in the moments changes nothing.
    state = trained(SWITCH)
    assert any(leaf.any() for leaf in jax.tree.leaves(state.actor.optimiser[0].mu))
    empty = jax.tree.map(jnp.zeros_like, state.actor.optimiser)
    forgotten = state.replace(actor=state.actor.replace(optimiser=empty))
    one, other = (cpl.update_step(CONFIG, before, make_batch())[0] for before in (state, forgotten))
    assert same(one.actor, other.actor)


def test_the_rate_rises_after_the_cloning() -> None:
    def rates(config: cpl.Config, *steps: int) -> list[float]:
        return [float(cpl.learning_rate(config, jnp.int32(step), 1e-4)) for step in steps]

    # Of the default run of 250,000 updates 100,000 clone, and 5,000 more let the rate rise.
    assert cpl.cloning_updates(cpl.Config()) == 100_000
    expected = [1e-4, 1e-4, 2e-8, 5e-5, 1e-4, 1e-4]
    steps = (0, 99_999, 100_000, 102_499, 104_999, 249_999)
    assert rates(cpl.Config(), *steps) == close(expected)
    # No warm-up, and no cloning.
    assert rates(cpl.Config(warmup_share=0.0), 99_999, 100_000) == close([1e-4, 1e-4])
    assert rates(cpl.Config(cloning_share=0.0), 0, 4_999) == close([2e-8, 1e-4])
    assert cpl.horizon(cpl.Config(num_updates=7)) == 7


def test_training_drops_units_and_acting_does_not() -> None:
    """Updates from the same state with another key see other units; without dropout they don't."""
    state, batch = trained(1), make_batch()
    other = state.replace(key=jax.random.key(9))
    losses = [cpl.update_step(CONFIG, one, batch)[1]["actor/loss"] for one in (state, other)]
    assert losses[0] != losses[1]
    whole = cpl.Config(**{**vars(CONFIG), "dropout": 0.0})
    losses = [cpl.update_step(whole, one, batch)[1]["actor/loss"] for one in (state, other)]
    assert losses[0] == losses[1]
    observations = batch.segment_pairs.observations
    actions = cpl.act(CONFIG, state, observations)
    np.testing.assert_array_equal(actions, cpl.act(CONFIG, other, observations))
    np.testing.assert_array_equal(actions, cpl.act(whole, state, observations))
    # The next update draws others.
    keys = [jax.random.key_data(trained(done).key).tolist() for done in range(4)]
    assert len({tuple(key) for key in keys}) == 4


def test_defaults() -> None:
    init = functools.partial(cpl.init, cpl.Config(), observation_dim=39, action_dim=4)
    state = jax.eval_shape(init, jax.random.key(0))
    count = sum(leaf.size for leaf in jax.tree.leaves(state.actor.params))
    assert count == 39 * 512 + 512 + 512 * 512 + 512 + 512 * 4 + 4
    assert vars(cpl.Swept()) == {
        "alpha": 0.1,
        "bias": 0.5,
        "bc_coefficient": 0.0,
        "learning_rate": 1e-4,
    }
    assert (cpl.Config().dropout, cpl.Config().num_pairs) == (0.25, 96)


def test_where_the_network_starts() -> None:
    kernel = np.asarray(trained(0).actor.params["params"]["hidden_0"]["kernel"])
    np.testing.assert_allclose(kernel @ kernel.T, np.eye(OBSERVATION_DIM), atol=1e-5)
