"""APPO, the practical version: Algorithm 4 of arXiv 2503.05306.

    state = appo.init(config, key, observation_dim, action_dim, lam=0.03)
    state, metrics = appo.update_step(config, state, batch)
    action = appo.act(config, state, observation)

All functions are pure and work under the caller's `jit`, `vmap` and `scan`. `Config` is static;
numbers that people sweep (`lam`, `discount`, `tau`) are arrays in the state, so that one compiled
program serves all their values and a leading axis makes many runs of one.
"""

import dataclasses
import functools
from typing import Any

import chex
import jax
import jax.numpy as jnp
import optax
from flax import struct

from appo_jax import losses
from appo_jax.data import dataset
from appo_jax.networks import (
    MLP,
    Params,
    forward,
    forward_ensemble,
    squashed_gaussian,
    state_action,
)
from appo_jax.optimiser import adam_step
from appo_jax.types import Batch, Metrics, Store, View

NUM_CRITICS = 2


@dataclasses.dataclass(frozen=True)
class Config:
    """What shapes the program. Defaults are the paper's, or BUILD_NOTES.md where it is silent.

    hidden_layers, hidden_dim, negative_slope: of critics, value and actor.
    batch_size, num_pairs, segment_length: transitions, and pairs of segments, of one update.
    pairwise_error: the critics' error is that of pairs of segments, as in the paper; False takes
    `losses.segment_error`, for environments that can terminate.
    *_learning_rate: Adam's. initial_temperature: alpha at the start.
    log_std_min, log_std_max: the actor's log standard deviation is clamped to them.
    """

    hidden_layers: int = 3
    hidden_dim: int = 256
    negative_slope: float = 0.01
    batch_size: int = 256
    num_pairs: int = 16
    segment_length: int = 25
    pairwise_error: bool = True
    critic_learning_rate: float = 3e-4
    value_learning_rate: float = 3e-4
    actor_learning_rate: float = 3e-5
    temperature_learning_rate: float = 3e-4
    initial_temperature: float = 1.0
    log_std_min: float = -20.0
    log_std_max: float = 2.0


class TrainState(struct.PyTreeNode):
    """All that training carries on, as arrays.

    Critic parameters have a leading axis of two; `step` counts updates; the optimiser states are
    Adam's. `lam`, `discount` and `tau` (Polyak rate) are the swept numbers, float32 scalars.
    """

    actor_params: Params
    critic_params: Params
    target_critic_params: Params
    value_params: Params
    log_temperature: jax.Array
    actor_optimiser: optax.OptState
    critic_optimiser: optax.OptState
    value_optimiser: optax.OptState
    temperature_optimiser: optax.OptState
    key: jax.Array
    step: jax.Array
    lam: jax.Array
    discount: jax.Array
    tau: jax.Array


def init(
    config: Config,
    key: jax.Array,
    observation_dim: int,
    action_dim: int,
    *,
    lam: float = 0.03,
    discount: float = 0.99,
    tau: float = 0.001,
) -> TrainState:
    """A fresh state: Algorithm 4, line 1. `key` is a typed PRNG key; the numbers may be traced."""
    actor_key, critic_key, value_key, state_key = jax.random.split(key, 4)
    observation, action = jnp.zeros(observation_dim), jnp.zeros(action_dim)
    actor_params = _actor(config, action_dim).init(actor_key, observation)
    critic_params = jax.vmap(_critic(config).init, (0, None))(
        jax.random.split(critic_key, NUM_CRITICS), state_action(observation, action)
    )
    value_params = _value(config).init(value_key, observation)
    log_temperature = jnp.log(jnp.float32(config.initial_temperature))
    return TrainState(
        actor_params=actor_params,
        critic_params=critic_params,
        # A copy: a state whose leaves share a buffer can't be donated.
        target_critic_params=jax.tree.map(jnp.copy, critic_params),
        value_params=value_params,
        log_temperature=log_temperature,
        actor_optimiser=optax.adam(config.actor_learning_rate).init(actor_params),
        critic_optimiser=optax.adam(config.critic_learning_rate).init(critic_params),
        value_optimiser=optax.adam(config.value_learning_rate).init(value_params),
        temperature_optimiser=optax.adam(config.temperature_learning_rate).init(log_temperature),
        key=state_key,
        step=jnp.int32(0),
        lam=jnp.asarray(lam, jnp.float32),
        discount=jnp.asarray(discount, jnp.float32),
        tau=jnp.asarray(tau, jnp.float32),
    )


def sample(config: Config, key: jax.Array, store: Store, view: View) -> Batch:
    """One update's data, uniform with replacement: Algorithm 4, line 4."""
    transition_key, pair_key = jax.random.split(key)
    rows = dataset.draw_transition_rows(transition_key, store, view, config.batch_size)
    pair_rows = dataset.draw_segment_rows(pair_key, store, view, (config.num_pairs, 2))
    return Batch(
        transitions=dataset.gather_transitions(store, rows),
        segment_pairs=dataset.gather_segment_pairs(store, view, pair_rows, config.segment_length),
    )


@functools.partial(jax.jit, static_argnames="config")
def update_step(config: Config, state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
    """One pass through lines 5 to 8 of Algorithm 4.

    The action that the critics, the value and the actor look at is one sample for each state,
    shared by the three: the actor changes only at the end of the step. Returns the new state and
    scalar metrics. Raises AssertionError (chex) for arrays whose shapes don't fit together.
    """
    transitions = batch.transitions
    chex.assert_rank([transitions.observations, transitions.actions], 2)
    key, noise, critic_index = draw_noise(state.key, transitions.actions.shape)

    def sample_actions(actor_params: Params) -> tuple[jax.Array, jax.Array]:
        mean, log_std = _action_distribution(config, actor_params, transitions.observations)
        return squashed_gaussian(mean, log_std, noise)

    (actions, log_probs), actor_vjp = jax.vjp(sample_actions, state.actor_params)
    state, critic_metrics = _update_critics(config, state, batch, actions)  # line 5
    state = state.replace(
        target_critic_params=optax.incremental_update(  # line 6
            state.critic_params, state.target_critic_params, state.tau
        )
    )
    state, value_metrics = _update_value(config, state, transitions.observations, actions)  # line 7
    state, actor_metrics = _update_actor(  # line 8
        config, state, transitions.observations, actions, log_probs, actor_vjp, critic_index
    )
    state, temperature_metrics = _update_temperature(config, state, log_probs, actions.shape[-1])
    state = state.replace(key=key, step=state.step + 1)
    return state, critic_metrics | value_metrics | actor_metrics | temperature_metrics


@functools.partial(jax.jit, static_argnames="config")
def act(config: Config, state: TrainState, observations: jax.Array) -> jax.Array:
    """The policy's mean action tanh(mean).

    observations: `[..., observation_dim]`, normalised. Returns `[..., action_dim]` in [-1, 1].
    """
    mean, _ = _action_distribution(config, state.actor_params, observations)
    return jnp.tanh(mean)


def snapshot(state: TrainState) -> TrainState:
    """The state with only what `act` reads, for sending to an evaluator."""
    empty = {field.name: None for field in dataclasses.fields(state)}
    return state.replace(**(empty | {"actor_params": state.actor_params}))


def draw_noise(key: jax.Array, shape: tuple[int, ...]) -> tuple[jax.Array, jax.Array, jax.Array]:
    """One update's randomness: the next key, standard normals of `shape`, and i ~ Unif{0, 1}."""
    key, noise_key, index_key = jax.random.split(key, 3)
    noise = jax.random.normal(noise_key, shape)
    return key, noise, jax.random.randint(index_key, (), 0, NUM_CRITICS)


def _update_critics(
    config: Config, state: TrainState, batch: Batch, actions: jax.Array
) -> tuple[TrainState, Metrics]:
    transitions, pairs = batch.transitions, batch.segment_pairs
    chex.assert_equal_shape([pairs.actions[..., 0], pairs.rewards, pairs.terminations])
    chex.assert_equal_shape([pairs.observations[:, :, 1:, 0], pairs.rewards])
    critic = _critic(config)
    next_values = forward(_value(config), state.value_params, pairs.observations[:, :, 1:])[..., 0]
    discounts = state.discount * (1 - pairs.terminations)
    # One matrix product for the policy's actions, the data's actions and the segments.
    segments = state_action(pairs.observations[:, :, :-1], pairs.actions)
    inputs = jnp.concatenate(
        [
            state_action(transitions.observations, actions),
            state_action(transitions.observations, transitions.actions),
            segments.reshape(-1, segments.shape[-1]),
        ]
    )
    batch_size = len(actions)
    error_of = losses.pair_error if config.pairwise_error else losses.segment_error

    def loss(critic_params: Params) -> tuple[jax.Array, Metrics]:
        q = forward(critic, critic_params, inputs)[:, 0]
        q_policy, q_data, q_segments = jnp.split(q, [batch_size, 2 * batch_size])
        adversarial = losses.adversarial_loss(q_policy, q_data)
        error = error_of(
            q_segments.reshape(pairs.rewards.shape), next_values, pairs.rewards, discounts
        )
        total = losses.critic_loss(state.lam, adversarial, error)
        metrics = {
            "critic/loss": total,
            "critic/adversarial": adversarial,
            f"critic/{error_of.__name__}": error,
            "critic/q_mean": jnp.mean(q_data),
        }
        return total, metrics

    grads, metrics = jax.vmap(jax.grad(loss, has_aux=True))(state.critic_params)
    critic_params, critic_optimiser = adam_step(
        config.critic_learning_rate, grads, state.critic_optimiser, state.critic_params
    )
    state = state.replace(critic_params=critic_params, critic_optimiser=critic_optimiser)
    return state, jax.tree.map(jnp.mean, metrics)


def _update_value(
    config: Config, state: TrainState, observations: jax.Array, actions: jax.Array
) -> tuple[TrainState, Metrics]:
    target_q = forward_ensemble(
        _critic(config), state.target_critic_params, state_action(observations, actions)
    )[..., 0]

    def loss(value_params: Params) -> jax.Array:
        values = forward(_value(config), value_params, observations)[:, 0]
        return losses.value_loss(values, target_q)

    loss_value, grads = jax.value_and_grad(loss)(state.value_params)
    value_params, value_optimiser = adam_step(
        config.value_learning_rate, grads, state.value_optimiser, state.value_params
    )
    state = state.replace(value_params=value_params, value_optimiser=value_optimiser)
    return state, {"value/loss": loss_value}


def _update_actor(
    config: Config,
    state: TrainState,
    observations: jax.Array,
    actions: jax.Array,
    log_probs: jax.Array,
    actor_vjp: Any,
    critic_index: jax.Array,
) -> tuple[TrainState, Metrics]:
    critic_params = jax.tree.map(lambda leaf: leaf[critic_index], state.critic_params)

    def loss(actions: jax.Array, log_probs: jax.Array) -> jax.Array:
        q = forward(_critic(config), critic_params, state_action(observations, actions))[:, 0]
        return losses.actor_loss(log_probs, q, jnp.exp(state.log_temperature))

    loss_value, cotangents = jax.value_and_grad(loss, argnums=(0, 1))(actions, log_probs)
    (grads,) = actor_vjp(cotangents)
    actor_params, actor_optimiser = adam_step(
        config.actor_learning_rate, grads, state.actor_optimiser, state.actor_params
    )
    state = state.replace(actor_params=actor_params, actor_optimiser=actor_optimiser)
    return state, {"actor/loss": loss_value, "actor/entropy": -jnp.mean(log_probs)}


def _update_temperature(
    config: Config, state: TrainState, log_probs: jax.Array, action_dim: int
) -> tuple[TrainState, Metrics]:
    loss_value, grad = jax.value_and_grad(losses.temperature_loss)(
        state.log_temperature, log_probs, -float(action_dim)
    )
    log_temperature, temperature_optimiser = adam_step(
        config.temperature_learning_rate, grad, state.temperature_optimiser, state.log_temperature
    )
    metrics = {"temperature/loss": loss_value, "temperature/alpha": jnp.exp(state.log_temperature)}
    state = state.replace(
        log_temperature=log_temperature, temperature_optimiser=temperature_optimiser
    )
    return state, metrics


def _action_distribution(
    config: Config, actor_params: Params, observations: jax.Array
) -> tuple[jax.Array, jax.Array]:
    action_dim = actor_params["params"]["output"]["bias"].shape[-1] // 2
    output = forward(_actor(config, action_dim), actor_params, observations)
    mean, log_std = jnp.split(output, 2, axis=-1)
    return mean, jnp.clip(log_std, config.log_std_min, config.log_std_max)


def _mlp(config: Config, output_dim: int) -> MLP:
    return MLP(config.hidden_layers, config.hidden_dim, output_dim, config.negative_slope)


def _actor(config: Config, action_dim: int) -> MLP:
    return _mlp(config, 2 * action_dim)


def _critic(config: Config) -> MLP:
    return _mlp(config, 1)


def _value(config: Config) -> MLP:
    return _mlp(config, 1)
