"""Inverse Preference Learning (Hejna and Sadigh 2023) with IQL: preferences, but no reward model.

    state = ipl.init(config, key, observation_dim, action_dim, regularisation=3.0)
    state, metrics = ipl.update_step(config, state, batch)
    action = ipl.act(config, state, observation)

Q and V imply a reward, `rho = Q(s, a) - gamma V(s')`. It takes the place of r_hat in the
Bradley-Terry loss, which thereby trains Q; V and the policy are IQL's. The order is that of the
authors' code: V, critics and policy (both read the new V), target critics.

Symbols to names: Q `critics`, Q-hat `target_critic_params`, V `value`, pi `actor`, c (the weight of
the chi^2 regulariser) `regularisation`, w `replay_weight`, tau `expectile`, 1 / beta `temperature`.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import chex
import jax
import jax.numpy as jnp
import optax
from flax import struct

from appo_jax import losses
from appo_jax.actors import deterministic_actions, gaussian_log_prob
from appo_jax.data import sampling
from appo_jax.networks import MLP, Params, forward, forward_ensemble, init_ensemble, state_action
from appo_jax.settings import MAX_LAYERS, MAX_ROWS, MAX_UNITS, Settings, SweptSettings, setting
from appo_jax.trainable import Trainable
from appo_jax.types import InputError, Metrics, SegmentPairs, Store, Transitions, View

NUM_CRITICS = 2
_LOG_STD_MIN, _LOG_STD_MAX = -5.0, 2.0


@dataclasses.dataclass(frozen=True)
class Config(Settings):
    """What shapes the program. Defaults are the authors' for Meta-World, and a replay batch."""

    hidden_layers: int = setting(
        3, "hidden layers of critics, value network and actor (ReLU)", high=MAX_LAYERS
    )
    hidden_dim: int = setting(256, "units of each hidden layer", high=MAX_UNITS)
    num_pairs: int = setting(16, "labelled pairs of one update", high=MAX_ROWS)
    segment_length: int = setting(25, "steps of a segment", of_run=True)
    crop_rows: int = setting(
        16, "rows of its segments that an update reads, the last as a next state only", low=2
    )
    replay_batch: int = setting(
        256,
        "transitions of one update from the whole data set; 0: labelled segments alone",
        low=0,
        high=MAX_ROWS,
    )
    target_clipping: bool = setting(
        False, "keep V(s') of the implied reward within +-1 / (c (1 - gamma))"
    )
    critic_learning_rate: float = setting(3e-4, "Adam's rate of the critics", above=0)
    value_learning_rate: float = setting(3e-4, "Adam's rate of the value network", above=0)
    actor_learning_rate: float = setting(3e-4, "Adam's rate of the actor", above=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.crop_rows > self.segment_length:
            raise InputError(
                f"crop_rows={self.crop_rows}: expected at most segment_length={self.segment_length}"
            )


class Swept(SweptSettings):
    """The numbers that may differ between runs of one program."""

    regularisation: float = setting(3.0, "c, the weight of the implied reward's square", low=0)
    replay_weight: float = setting(
        0.5, "w, the share of the replay batch in all but the preference loss", low=0, high=1
    )
    expectile: float = setting(0.75, "tau of the expectile regression of V", above=0, high=1)
    temperature: float = setting(
        3.0, "1 / beta, the advantage's factor in the policy's weights", low=0
    )
    discount: float = setting(0.99, "gamma", low=0, high=1)
    tau: float = setting(0.005, "Polyak rate of the target critics", above=0, high=1)


class Batch(struct.PyTreeNode):
    """What one update reads.

    segment_pairs: crops of labelled pairs, all with the same start in their segments.
    labels: `[pairs]`, probability that the second is preferred.
    replay: transitions of the whole data set, None without a replay batch.
    """

    segment_pairs: SegmentPairs
    labels: jax.Array
    replay: Transitions | None


class TrainState(struct.PyTreeNode):
    """All that training carries on, as arrays.

    The critics' parameters have a leading axis of two; the actor's are those of its network and
    `log_std` `[action_dim]`, the same in all states. `step` counts updates.
    """

    actor: Trainable
    critics: Trainable
    target_critic_params: Params
    value: Trainable
    step: jax.Array
    swept: Swept


def init(
    config: Config, key: jax.Array, observation_dim: int, action_dim: int, **swept: Any
) -> TrainState:
    """A fresh state.

    key: a typed PRNG key. swept: fields of `Swept` by name, numbers or (also traced) arrays.
    """
    actor_key, critic_key, value_key = jax.random.split(key, 3)
    observation, action = jnp.zeros(observation_dim), jnp.zeros(action_dim)
    critic_params = init_ensemble(
        _network(config, 1), critic_key, NUM_CRITICS, state_action(observation, action)
    )
    actor_params = {
        "mean": _network(config, action_dim).init(actor_key, observation),
        "log_std": jnp.zeros(action_dim),
    }
    value_params = _network(config, 1).init(value_key, observation)
    return TrainState(
        actor=Trainable.create(actor_params, optax.adam(config.actor_learning_rate)),
        critics=Trainable.create(critic_params, optax.adam(config.critic_learning_rate)),
        # A copy: a state whose leaves share a buffer can't be donated.
        target_critic_params=jax.tree.map(jnp.copy, critic_params),
        value=Trainable.create(value_params, optax.adam(config.value_learning_rate)),
        step=jnp.int32(0),
        swept=Swept(**swept).on_device(),
    )


def sample(config: Config, key: jax.Array, step: jax.Array, store: Store, view: View) -> Batch:
    """The data of update `step`: labelled pairs, one start of their crops, and the replay batch."""
    pair_key, crop_key, replay_key = jax.random.split(jax.random.fold_in(key, step), 3)
    rows, labels = sampling.draw_labelled_pairs(pair_key, store, view, config.num_pairs)
    # As in the authors' code the last possible start is left out, unless it is the only one.
    starts = max(1, config.segment_length - config.crop_rows)
    rows = rows + jax.random.randint(crop_key, (), 0, starts)
    replay = None
    if config.replay_batch:
        replay_rows = sampling.draw_transition_rows(replay_key, store, view, config.replay_batch)
        replay = sampling.gather_transitions(store, view, replay_rows)
    return Batch(
        segment_pairs=sampling.gather_segment_pairs(store, view, rows, config.crop_rows - 1),
        labels=labels,
        replay=replay,
    )


@functools.partial(jax.jit, static_argnames="config")
def update_step(config: Config, state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
    """One update of V, critics, policy and target critics.

    Returns the new state and scalar metrics. Raises AssertionError (chex) for arrays whose shapes
    don't fit together.
    """
    transitions = _all_transitions(batch)
    inputs = state_action(transitions.observations, transitions.actions)
    target_q = jnp.min(_q(config, state.target_critic_params, inputs), axis=0)
    state, value_metrics = _update_value(config, state, transitions.observations, target_q)
    advantages = target_q - _v(config, state.value.params, transitions.observations)
    state, critic_metrics = _update_critics(config, state, batch.labels, transitions, inputs)
    state, actor_metrics = _update_actor(config, state, transitions, advantages)
    state = state.replace(
        target_critic_params=optax.incremental_update(
            state.critics.params, state.target_critic_params, state.swept.tau
        ),
        step=state.step + 1,
    )
    return state, value_metrics | critic_metrics | actor_metrics


@functools.partial(jax.jit, static_argnames="config")
def act(config: Config, state: TrainState, observations: jax.Array) -> jax.Array:
    """The policy's mean action.

    observations: `[..., observation_dim]`, normalised. Returns `[..., action_dim]` in [-1, 1].
    """
    return _mean(config, state.actor.params, observations)


def score(config: Config, state: TrainState, segments: SegmentPairs) -> jax.Array:
    """The return that Q and V imply: the sum of rho, the mean of both critics, `[pairs, 2]`."""
    inputs = state_action(segments.observations[:, :, :-1], segments.actions)
    q = jnp.mean(_q(config, state.critics.params, inputs), axis=0)
    next_values = _v(config, state.value.params, segments.observations[:, :, 1:])
    if config.target_clipping:
        next_values = clip_targets(next_values, state.swept.regularisation, state.swept.discount)
    discounts = state.swept.discount * (1 - segments.terminations)
    return losses.implied_returns(q, next_values, discounts, segments.is_step)


def implied_rewards(
    q: jax.Array, next_values: jax.Array, discounts: jax.Array | float
) -> jax.Array:
    """The reward Q(s, a) - gamma V(s') that Q and V imply, without gradient to V.

    q: `[..., batch]`; next_values: `[batch]`; discounts: gamma, or `[batch]`, 0 where the step
    reached a terminal state. Returns the shape of q.
    """
    chex.assert_rank(next_values, 1)
    chex.assert_equal_shape_suffix([q, next_values], 1)
    return q - discounts * jax.lax.stop_gradient(next_values)


def clip_targets(
    next_values: jax.Array, regularisation: jax.Array | float, discount: jax.Array | float
) -> jax.Array:
    """V(s') within +-1 / (c (1 - gamma)), the range of values that the regulariser leaves."""
    bound = 1 / (regularisation * (1 - discount))
    return jnp.clip(next_values, -bound, bound)


def weighted(
    loss: Callable[..., jax.Array],
    replay_batch: int,
    replay_weight: jax.Array | float,
    *arrays: jax.Array,
) -> jax.Array:
    """(1 - w) times a mean over labelled segments plus w times the same over the replay batch.

    loss: such a mean, of arrays that are `[..., batch]` each, the replay batch last; without one
    it is the loss of everything. Both segments of a pair are equally long, so their mean is that of
    the two segments' means.
    """
    if not replay_batch:
        return loss(*arrays)
    of_pairs = loss(*(array[..., :-replay_batch] for array in arrays))
    of_replay = loss(*(array[..., -replay_batch:] for array in arrays))
    return (1 - replay_weight) * of_pairs + replay_weight * of_replay


def _all_transitions(batch: Batch) -> Transitions:
    """Those of both crops of all pairs, laid flat, then the replay batch."""
    pairs = batch.segment_pairs
    chex.assert_equal_shape([pairs.actions[..., 0], pairs.terminations])
    chex.assert_equal_shape([pairs.observations[:, :, 1:, 0], pairs.terminations])
    chex.assert_equal_shape([pairs.actions[:, 0, 0, 0], batch.labels])
    crops = Transitions(
        observations=pairs.observations[:, :, :-1],
        actions=pairs.actions,
        rewards=pairs.rewards,
        next_observations=pairs.observations[:, :, 1:],
        terminations=pairs.terminations,
    )
    flat = jax.tree.map(lambda array: array.reshape(-1, *array.shape[3:]), crops)
    if batch.replay is None:
        return flat
    return jax.tree.map(lambda *both: jnp.concatenate(both), flat, batch.replay)


def _update_value(
    config: Config, state: TrainState, observations: jax.Array, target_q: jax.Array
) -> tuple[TrainState, Metrics]:
    expectile_loss = functools.partial(losses.expectile_loss, expectile=state.swept.expectile)

    def loss(params: Params) -> tuple[jax.Array, jax.Array]:
        values = _v(config, params, observations)
        total = weighted(
            expectile_loss, config.replay_batch, state.swept.replay_weight, target_q - values
        )
        return total, jnp.mean(values)

    (loss_value, v_mean), grads = jax.value_and_grad(loss, has_aux=True)(state.value.params)
    value = state.value.step(grads, optax.adam(config.value_learning_rate))
    return state.replace(value=value), {"value/loss": loss_value, "value/v_mean": v_mean}


def _update_critics(
    config: Config,
    state: TrainState,
    labels: jax.Array,
    transitions: Transitions,
    inputs: jax.Array,
) -> tuple[TrainState, Metrics]:
    swept = state.swept
    next_values = _v(config, state.value.params, transitions.next_observations)
    if config.target_clipping:
        next_values = clip_targets(next_values, swept.regularisation, swept.discount)
    discounts = swept.discount * (1 - transitions.terminations)
    num_replay = config.replay_batch

    def loss(params: Params) -> tuple[jax.Array, Metrics]:
        q = _q(config, params, inputs)
        rho = implied_rewards(q, next_values, discounts)
        of_pairs = rho[:, : rho.shape[1] - num_replay]
        scores = of_pairs.reshape(NUM_CRITICS, len(labels), 2, -1).sum(axis=-1)
        both = jnp.broadcast_to(labels, scores.shape[:-1])
        preference = jnp.mean(losses.preference_loss(scores, both))
        square = weighted(
            lambda rho: jnp.mean(jnp.square(rho)), num_replay, swept.replay_weight, rho
        )
        total = preference + swept.regularisation * square
        margin = jnp.mean(scores[..., 1] - scores[..., 0], axis=0)
        correct, strict = losses.is_ordered(margin, labels)
        metrics = {
            "critic/loss": total,
            "critic/preference_loss": preference,
            "critic/implied_reward_square": square,
            "critic/accuracy": (correct & strict).sum() / jnp.maximum(strict.sum(), 1),
            "critic/q_mean": jnp.mean(q),
        }
        return total, metrics

    grads, metrics = jax.grad(loss, has_aux=True)(state.critics.params)
    critics = state.critics.step(grads, optax.adam(config.critic_learning_rate))
    return state.replace(critics=critics), metrics


def _update_actor(
    config: Config, state: TrainState, transitions: Transitions, advantages: jax.Array
) -> tuple[TrainState, Metrics]:
    weights = losses.advantage_weights(advantages, state.swept.temperature)

    def loss(params: Params) -> jax.Array:
        mean = _mean(config, params, transitions.observations)
        log_std = jnp.clip(params["log_std"], _LOG_STD_MIN, _LOG_STD_MAX)
        log_probs = gaussian_log_prob(mean, log_std, transitions.actions)
        return weighted(
            losses.weighted_cloning_loss,
            config.replay_batch,
            state.swept.replay_weight,
            log_probs,
            weights,
        )

    loss_value, grads = jax.value_and_grad(loss)(state.actor.params)
    metrics = {
        "actor/loss": loss_value,
        "actor/advantage_mean": jnp.mean(advantages),
        "actor/weight_mean": jnp.mean(weights),
    }
    actor = state.actor.step(grads, optax.adam(config.actor_learning_rate))
    return state.replace(actor=actor), metrics


def _q(config: Config, params: Params, inputs: jax.Array) -> jax.Array:
    return forward_ensemble(_network(config, 1), params, inputs)[..., 0]


def _v(config: Config, params: Params, observations: jax.Array) -> jax.Array:
    return forward(_network(config, 1), params, observations)[..., 0]


def _mean(config: Config, params: Params, observations: jax.Array) -> jax.Array:
    network = _network(config, params["log_std"].shape[-1])
    return deterministic_actions(network, params["mean"], observations)


def _network(config: Config, output_dim: int) -> MLP:
    return MLP(config.hidden_layers, config.hidden_dim, output_dim, 0.0, orthogonal_gain=1.0)
