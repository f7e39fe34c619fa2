"""PVO's loss by hand, what cancels in it, and a whole update by its formulas in NumPy.

What V, the policy and the target critics do is IQL's, and tested in `test_iql.py`; that every
setting acts is in `test_learners.py`.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from appo_jax import iql, pvo
from appo_jax.types import SegmentPairs, Transitions

# Two segments of two steps. Segment 0: (1 - 0.5*3 - 0.1) + (2 - 0.5*4 - 0.2) = -0.6 - 0.2 = -0.8.
# Segment 1: (0 - 0.5*1 - 0) + (1 - 0.5*1 - 0) = -0.5 + 0.5 = 0. So L_Q = (-0.8 - 0)^2 = 0.64.
Q = jnp.array([[[1.0, 2.0], [0.0, 1.0]]])
NEXT_VALUES = jnp.array([[[3.0, 4.0], [1.0, 1.0]]])
REWARDS = jnp.array([[[0.1, 0.2], [0.0, 0.0]]])
DISCOUNTS = jnp.full((1, 2, 2), 0.5)
ARGUMENTS = (Q, NEXT_VALUES, REWARDS, DISCOUNTS)

OBSERVATION_DIM, ACTION_DIM = 3, 2
CONFIG = pvo.Config(
    hidden_layers=1, hidden_dim=5, batch_size=6, num_pairs=3, segment_length=4, num_updates=10
)
# Of each setting another value: a config more is a program more to compile.
OTHER = dataclasses.replace(
    CONFIG,
    pairwise_error=False,
    follow_terminations=True,
    critic_schedule="cosine",
    num_updates=1,
)
SWEPT = {"expectile": 0.8, "temperature": 2.0, "discount": 0.9, "tau": 0.25}


def test_alignment_loss_by_hand() -> None:
    assert pvo.alignment_loss(*ARGUMENTS) == pytest.approx(0.64)


def test_its_gradient_by_hand() -> None:
    # 2 * -0.8 for each step of segment 0, the opposite for those of segment 1; none reaches V in
    # an update, since V is read as a constant there.
    found = jax.grad(pvo.alignment_loss)(*ARGUMENTS)
    np.testing.assert_allclose(found, 1.6 * np.array([[[-1, -1], [1, 1]]]), rtol=1e-6)


def test_it_is_a_mean_over_pairs() -> None:
    # The second pair's segments are equal, so its error is 0 and the mean halves.
    stacked = [jnp.concatenate([array, jnp.ones_like(array)]) for array in ARGUMENTS]
    assert pvo.alignment_loss(*stacked) == pytest.approx(0.32)


@pytest.mark.parametrize("shift", [-3.0, 100.0])
def test_levels_cancel_of_q_v_and_rewards(shift: float) -> None:
    for place in range(3):
        shifted = [array + shift * (at == place) for at, array in enumerate(ARGUMENTS)]
        np.testing.assert_allclose(pvo.alignment_loss(*shifted), 0.64, rtol=1e-3)


def test_swapping_the_segments_changes_nothing() -> None:
    swapped = [array[:, ::-1] for array in ARGUMENTS]
    assert pvo.alignment_loss(*swapped) == pytest.approx(0.64)


def test_a_termination_cuts_the_bootstrap_and_the_cancellation() -> None:
    # With a discount of 0 at segment 0's last step its sum is -0.6 + (2 - 0 - 0.2) = 1.2.
    discounts = DISCOUNTS.at[0, 0, 1].set(0.0)
    assert pvo.alignment_loss(Q, NEXT_VALUES, REWARDS, discounts) == pytest.approx(1.44)
    # Then 2 * 0.5 of V in segment 1 stands against 0.5 in segment 0: -0.5 + 1 more.
    higher = pvo.alignment_loss(Q, NEXT_VALUES + 1, REWARDS, discounts)
    assert higher == pytest.approx(1.7**2)


def test_segment_loss_by_hand() -> None:
    # (0.64 + 0) / 2. A step worth 3 more: sums -6.8 and -6, (46.24 + 36) / 2 = 41.12.
    assert pvo.segment_loss(*ARGUMENTS) == pytest.approx(0.32)
    assert pvo.segment_loss(Q, NEXT_VALUES, REWARDS + 3, DISCOUNTS) == pytest.approx(41.12)


def test_what_is_no_step_does_not_count() -> None:
    # Segment 0 ends after one step, whose term is -0.6; segment 1 sums to 0.
    is_step = jnp.array([[[True, False], [True, True]]])
    assert pvo.alignment_loss(*ARGUMENTS, is_step) == pytest.approx(0.36)
    assert pvo.segment_loss(*ARGUMENTS, is_step) == pytest.approx(0.18)


def test_shapes_that_would_broadcast_raise() -> None:
    for loss in (pvo.alignment_loss, pvo.segment_loss):
        with pytest.raises(AssertionError):
            loss(Q, NEXT_VALUES[..., :1], REWARDS, DISCOUNTS)
        with pytest.raises(AssertionError):
            loss(*(array[:, :1] for array in ARGUMENTS))
    batch = make_batch()
    pairs = batch.segment_pairs
    for broken in (
        pairs.replace(rewards=pairs.rewards[..., :1]),
        pairs.replace(observations=pairs.observations[:, :, :-1]),
    ):
        with pytest.raises(AssertionError):
            pvo.update_step(CONFIG, make_state(CONFIG), batch.replace(segment_pairs=broken))
    flat = batch.transitions.replace(actions=batch.transitions.actions[:, 0])
    with pytest.raises(AssertionError):
        pvo.update_step(CONFIG, make_state(CONFIG), batch.replace(transitions=flat))


def test_all_but_the_critics_loss_is_iqls() -> None:
    theirs = {field.name: field.default for field in dataclasses.fields(iql.Config)}
    ours = {field.name: field.default for field in dataclasses.fields(pvo.Config)}
    assert {name: ours[name] for name in theirs} == theirs
    assert pvo.Swept is iql.Swept


def test_a_cosine_takes_the_critics_rate_to_0_over_the_run() -> None:
    states = [make_state(OTHER)]
    for _ in range(2):
        states.append(pvo.update_step(OTHER, states[-1], make_batch())[0])
    first, second, third = (jax.tree.leaves(state.critics.params) for state in states)
    assert any((one != two).any() for one, two in zip(first, second, strict=True))
    assert all((two == three).all() for two, three in zip(second, third, strict=True))


def test_a_horizon_is_told_where_there_is_one() -> None:
    for actor, critic, expected in (
        ("cosine", "cosine", 7),
        ("cosine", "constant", 7),
        ("constant", "cosine", 7),
        ("constant", "constant", None),
    ):
        config = pvo.Config(num_updates=7, actor_schedule=actor, critic_schedule=critic)
        assert pvo.horizon(config) == expected


# A whole update.


@functools.cache
def make_batch() -> pvo.Batch:
    draw = np.random.default_rng(0)

    def normal(*shape: int) -> jax.Array:
        return jnp.asarray(draw.standard_normal(shape, np.float32))

    shape = (CONFIG.num_pairs, 2, CONFIG.segment_length)
    rows = CONFIG.batch_size
    return pvo.Batch(
        transitions=Transitions(
            observations=normal(rows, OBSERVATION_DIM),
            actions=jnp.tanh(normal(rows, ACTION_DIM)),
            # No loss of PVO reads these.
            rewards=jnp.full(rows, jnp.nan),
            next_observations=jnp.full((rows, OBSERVATION_DIM), jnp.nan),
            terminations=jnp.ones(rows, bool),
        ),
        segment_pairs=SegmentPairs(
            observations=normal(*shape[:2], shape[2] + 1, OBSERVATION_DIM),
            actions=jnp.tanh(normal(*shape, ACTION_DIM)),
            rewards=normal(*shape),
            terminations=jnp.asarray(draw.random(shape) < 0.2),
        ),
    )


@functools.cache
def make_state(config: pvo.Config) -> pvo.TrainState:
    init = jax.jit(pvo.init, static_argnums=(0, 2, 3))
    state = init(config, jax.random.key(0), OBSERVATION_DIM, ACTION_DIM, **SWEPT)
    # Targets of their own, so that it shows who reads which critics.
    apart = jax.tree.map(lambda leaf: 3 * leaf + 0.2, state.target_critic_params)
    return state.replace(target_critic_params=apart)


def network(params: Any, inputs: np.ndarray) -> np.ndarray:
    """One hidden layer with ReLU, of a tree of float64 arrays."""
    hidden, output = params["params"]["hidden_0"], params["params"]["output"]
    return (
        np.maximum(inputs @ hidden["kernel"] + hidden["bias"], 0) @ output["kernel"]
        + (output["bias"])
    )


def of_critic(params: Any, index: int) -> Any:
    return jax.tree.map(lambda leaf: leaf[index], params)


def losses_by_formula(config: pvo.Config, state: Any, batch: Any) -> dict[str, Callable[..., Any]]:
    """The three losses as functions of their own parameters; all else is held."""
    pairs, transitions = batch.segment_pairs, batch.transitions
    value, targets = state.value.params, state.target_critic_params
    both = np.concatenate([transitions.observations, transitions.actions], axis=1)
    target_q = np.minimum(*(network(of_critic(targets, i), both)[:, 0] for i in (0, 1)))
    inputs = np.concatenate([pairs.observations[:, :, :-1], pairs.actions], axis=-1)
    next_values = network(value, pairs.observations[:, :, 1:])[..., 0]
    discounts = SWEPT["discount"] * np.ones_like(next_values)
    if config.follow_terminations:
        discounts[pairs.terminations] = 0

    def critic_loss(params: Any) -> float:
        total = 0.0
        for index in (0, 1):
            implied = network(of_critic(params, index), inputs)[..., 0] - discounts * next_values
            scores = implied.sum(axis=-1) - pairs.rewards.sum(axis=-1)
            if config.pairwise_error:
                total += np.mean((scores[:, 0] - scores[:, 1]) ** 2) / 2
            else:
                total += np.mean(scores**2) / 2
        return total

    def value_loss(params: Any) -> float:
        u = target_q - network(params, transitions.observations)[:, 0]
        return np.mean(np.where(u < 0, 1 - SWEPT["expectile"], SWEPT["expectile"]) * u**2)

    def actor_loss(params: Any) -> float:
        u = target_q - network(value, transitions.observations)[:, 0]
        mean = np.tanh(network(params["mean"], transitions.observations))
        standardised = (transitions.actions - mean) / np.exp(params["log_std"])
        log_probs = -0.5 * standardised**2 - params["log_std"] - 0.5 * np.log(2 * np.pi)
        weights = np.minimum(np.exp(SWEPT["temperature"] * u), 100)
        return -np.mean(weights * log_probs.sum(axis=-1))

    return {"critics": critic_loss, "value": value_loss, "actor": actor_loss}


def slopes(loss: Callable[..., float], params: Any) -> Any:
    """The gradient by central differences; in float64 they are right to 1e-9 off ReLU's kinks."""
    leaves, tree = jax.tree.flatten(params)

    def slope(at: int, place: tuple[int, ...]) -> float:
        found = []
        for step in (1e-6, -1e-6):
            moved = [leaf.copy() for leaf in leaves]
            moved[at][place] += step
            found.append(loss(jax.tree.unflatten(tree, moved)))
        return (found[0] - found[1]) / 2e-6

    return jax.tree.unflatten(
        tree,
        [
            np.array([slope(at, place) for place in np.ndindex(leaf.shape)]).reshape(leaf.shape)
            for at, leaf in enumerate(leaves)
        ],
    )


@pytest.mark.parametrize("config", [CONFIG, OTHER], ids=["pairs", "segments"])
def test_an_update_by_its_formulas(config: pvo.Config) -> None:
    before, batch = make_state(config), make_batch()
    after, metrics = pvo.update_step(config, before, batch)
    state, arrays = jax.tree.map(
        lambda leaf: np.asarray(leaf, np.float64 if leaf.dtype == jnp.float32 else leaf.dtype),
        (before, batch),
    )
    for name, loss in losses_by_formula(config, state, arrays).items():
        params = getattr(state, name).params
        said = metrics["critic/loss" if name == "critics" else f"{name}/loss"]
        assert said == pytest.approx(loss(params), rel=1e-5)
        # Adam's first moment is a tenth of the gradient.
        moments = getattr(after, name).optimiser[0].mu
        expected = slopes(loss, params)
        scale = max(np.abs(leaf).max() for leaf in jax.tree.leaves(expected))
        assert scale > 1e-3
        jax.tree.map(
            lambda found, slope, scale=scale: np.testing.assert_allclose(
                10 * found, slope, rtol=1e-4, atol=1e-5 * scale
            ),
            moments,
            expected,
        )
    jax.tree.map(
        lambda target, old, new: np.testing.assert_allclose(
            target, 0.75 * old + 0.25 * new, rtol=1e-5, atol=1e-6
        ),
        after.target_critic_params,
        before.target_critic_params,
        after.critics.params,
    )
    assert after.step == 1
