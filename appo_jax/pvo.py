"""Preference-based Value Optimization (Kang and Oh 2026): IQL aligned with r_hat in pairs.

    state = pvo.init(config, key, observation_dim, action_dim, expectile=0.7)
    state, metrics = pvo.update_step(config, state, batch)
    action = pvo.act(config, state, observation)

Q and V imply a reward, Q(s, a) - gamma V(s'), and labels tell only differences between segments.
So critics don't regress Q on r_hat + gamma V(s') step by step: the difference between two segments'
summed implied rewards is to be that between their summed r_hat. V, the policy, the target critics,
the settings and their defaults are IQL's (`appo_jax/iql.py`).

Symbols to names: Q `critics`, V `value`, r_hat `rewards`, gamma `discount` (a `discounts` array is
gamma, or 0 where the step reached a terminal state), tau `expectile`, beta `temperature`.
"""

import dataclasses
import functools
from typing import Any, Literal

import chex
import jax
import jax.numpy as jnp
import optax
from flax import struct

from appo_jax import appo, iql
from appo_jax.data import sampling
from appo_jax.networks import Params, state_action
from appo_jax.settings import MAX_ROWS, setting
from appo_jax.trainable import Trainable
from appo_jax.types import Metrics, SegmentPairs, Store, Transitions, View

# The networks and the numbers are IQL's.
Swept = iql.Swept
TrainState = iql.TrainState
act = iql.act
score = iql.score


@dataclasses.dataclass(frozen=True)
class Config(iql.Config):
    """What shapes the program: IQL's settings, and what the critics compare."""

    num_pairs: int = setting(16, "pairs of segments of one update", high=MAX_ROWS)
    segment_length: int = setting(25, "steps of a segment", of_run=True)
    pairwise_error: bool = setting(
        True,
        "critics compare segments in pairs, as in the paper, not each with r_hat itself",
        with_terminations=False,
    )
    partial_segments: bool = setting(
        False,
        "segments begin at any step, and end with their episode where it is shorter: its end is "
        "seen as often as what comes before",
        with_terminations=True,
    )
    critic_schedule: Literal["constant", "cosine"] = setting(
        "constant", "of the critics' rate: constant or cosine (to 0 over the whole run)"
    )


class Batch(struct.PyTreeNode):
    """What one update reads: transitions for V and the policy, segments for the critics."""

    transitions: Transitions
    segment_pairs: SegmentPairs


def horizon(config: Config) -> int | None:
    """The updates over which a rate falls to 0, None where all are constant."""
    return config.num_updates if config.critic_schedule == "cosine" else iql.horizon(config)


def init(
    config: Config, key: jax.Array, observation_dim: int, action_dim: int, **swept: Any
) -> TrainState:
    """A fresh state, IQL's.

    key: a typed PRNG key. swept: fields of `Swept` by name, numbers or (also traced) arrays.
    """
    state = iql.init(config, key, observation_dim, action_dim, **swept)
    return state.replace(critics=Trainable.create(state.critics.params, _critic_optimiser(config)))


def sample(config: Config, key: jax.Array, step: jax.Array, store: Store, view: View) -> Batch:
    """The data of update `step`, uniform with replacement."""
    transition_key, pair_key = jax.random.split(jax.random.fold_in(key, step))
    rows = sampling.draw_transition_rows(transition_key, store, view, config.batch_size)
    length = config.segment_length
    pair_rows, is_step = sampling.draw_segments(
        pair_key, store, view, (config.num_pairs, 2), length, config.partial_segments
    )
    return Batch(
        transitions=sampling.gather_transitions(store, view, rows),
        segment_pairs=sampling.gather_segment_pairs(store, view, pair_rows, length, is_step),
    )


@functools.partial(jax.jit, static_argnames="config")
def update_step(config: Config, state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
    """One update of V, critics, target critics and policy, in the order of IQL's `variant`.

    Returns the new state and scalar metrics. Raises AssertionError (chex) for arrays whose shapes
    don't fit together.
    """
    chex.assert_rank([batch.transitions.observations, batch.transitions.actions], 2)
    update_critics = functools.partial(_update_critics, config, batch.segment_pairs)
    return iql.update_with(update_critics, config, state, batch.transitions)


def alignment_loss(
    q: jax.Array,
    next_values: jax.Array,
    rewards: jax.Array,
    discounts: jax.Array,
    is_step: jax.Array | None = None,
) -> jax.Array:
    """L_Q, the value alignment loss: how far the segments' summed TD errors differ, squared.

    mean over pairs of (sum_l (Q(s_l, a_l) - gamma V(s_{l+1}) - r_hat(s_l, a_l)) of segment 0 minus
    the same of segment 1)^2: APPO's `pair_error` with a square for the absolute value.

    q, next_values, rewards, discounts: `[pairs, 2, length]`; next_values are V(s_{l+1}).
    is_step: of `SegmentPairs`. Returns a scalar.
    """
    return appo.pair_error(q, next_values, rewards, discounts, squared=True, is_step=is_step)


def segment_loss(
    q: jax.Array,
    next_values: jax.Array,
    rewards: jax.Array,
    discounts: jax.Array,
    is_step: jax.Array | None = None,
) -> jax.Array:
    """Mean over segments of the same sum's square, for environments that can terminate.

    `alignment_loss` is the same for r_hat + c, and so leaves open whether going on is worth more
    than ending. Not in the paper. Arguments as there.
    """
    return appo.segment_error(q, next_values, rewards, discounts, squared=True, is_step=is_step)


def _update_critics(
    config: Config, pairs: SegmentPairs, state: TrainState, value_params: Params
) -> tuple[TrainState, Metrics]:
    chex.assert_equal_shape([pairs.actions[..., 0], pairs.rewards, pairs.terminations])
    chex.assert_equal_shape([pairs.observations[:, :, 1:, 0], pairs.rewards])
    inputs = state_action(pairs.observations[:, :, :-1], pairs.actions)
    next_values = iql.values(config, value_params, pairs.observations[:, :, 1:])
    discounts = iql.step_discounts(config, state, pairs.terminations)
    loss_of = alignment_loss if config.pairwise_error else segment_loss

    def loss(params: Params) -> tuple[jax.Array, jax.Array]:
        q = iql.q_values(config, params, inputs)
        of_each = jax.vmap(loss_of, (0, None, None, None, None))(
            q, next_values, pairs.rewards, discounts, pairs.is_step
        )
        return jnp.mean(of_each), jnp.mean(q)

    (loss_value, q_mean), grads = jax.value_and_grad(loss, has_aux=True)(state.critics.params)
    critics = state.critics.step(grads, _critic_optimiser(config))
    return state.replace(critics=critics), {"critic/loss": loss_value, "critic/q_mean": q_mean}


def _critic_optimiser(config: Config) -> optax.GradientTransformation:
    return iql.adam(config.critic_learning_rate, config.critic_schedule, config.num_updates)
