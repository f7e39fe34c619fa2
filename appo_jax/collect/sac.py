"""Soft actor-critic (Haarnoja et al. 2018) with the settings of the published replay buffers.

    state = sac.init(config, key, observation_dim, action_dim)
    actions = sac.explore(config, state, key, observations)
    state, metrics = sac.update_step(config, state, batch)

The settings are those of BPref's agent on the true reward, whose buffers the paper's data are:
observations as they are, one learned temperature, a slow target network. All that such an agent
sees while it learns is medium-replay data; `collect/replay_collection.py` collects it.
"""

import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp
import optax
from flax import struct

from appo_jax import losses
from appo_jax.actors import squashed_gaussian
from appo_jax.networks import MLP, Params, forward, forward_ensemble, init_ensemble, state_action
from appo_jax.settings import MAX_LAYERS, MAX_ROWS, MAX_UNITS, Settings, setting
from appo_jax.trainable import Trainable
from appo_jax.types import Metrics, Transitions

NUM_CRITICS = 2


@dataclasses.dataclass(frozen=True)
class Config(Settings):
    """What shapes the program. Defaults are BPref's for Meta-World."""

    hidden_layers: int = setting(3, "hidden layers of actor and critics (ReLU)", high=MAX_LAYERS)
    hidden_dim: int = setting(256, "units of each hidden layer", high=MAX_UNITS)
    batch_size: int = setting(512, "transitions of one update", high=MAX_ROWS)
    actor_learning_rate: float = setting(3e-4, "Adam's rate of the actor", above=0)
    critic_learning_rate: float = setting(3e-4, "Adam's rate of the critics", above=0)
    temperature_learning_rate: float = setting(1e-4, "Adam's rate of the temperature", above=0)
    initial_temperature: float = setting(0.1, "alpha at the start", above=0)
    target_interval: int = setting(2, "updates for one of the target critics")
    # The log standard deviation approaches these by a tanh.
    log_std_min: float = setting(-5.0, "lower bound of the actor's log standard deviation")
    log_std_max: float = setting(2.0, "upper bound of the actor's log standard deviation")


class TrainState(struct.PyTreeNode):
    """All that training carries on, as arrays.

    The critics' parameters have a leading axis of two; `step` counts updates. `discount` and `tau`
    (Polyak rate) are float32 scalars.
    """

    actor: Trainable
    critics: Trainable
    target_critic_params: Params
    log_temperature: Trainable
    key: jax.Array
    step: jax.Array
    discount: jax.Array
    tau: jax.Array


def init(
    config: Config,
    key: jax.Array,
    observation_dim: int,
    action_dim: int,
    *,
    discount: float = 0.99,
    tau: float = 0.005,
) -> TrainState:
    """A fresh state. `key` is a typed PRNG key; the numbers may be traced."""
    actor_key, critic_key, state_key = jax.random.split(key, 3)
    observation, action = jnp.zeros(observation_dim), jnp.zeros(action_dim)
    actor_params = _network(config, 2 * action_dim).init(actor_key, observation)
    critic_params = init_ensemble(
        _network(config, 1), critic_key, NUM_CRITICS, state_action(observation, action)
    )
    log_temperature = jnp.log(jnp.float32(config.initial_temperature))
    return TrainState(
        actor=Trainable.create(actor_params, optax.adam(config.actor_learning_rate)),
        critics=Trainable.create(critic_params, optax.adam(config.critic_learning_rate)),
        # A copy: a state whose leaves share a buffer can't be donated.
        target_critic_params=jax.tree.map(jnp.copy, critic_params),
        log_temperature=Trainable.create(
            log_temperature, optax.adam(config.temperature_learning_rate)
        ),
        key=state_key,
        step=jnp.int32(0),
        discount=jnp.asarray(discount, jnp.float32),
        tau=jnp.asarray(tau, jnp.float32),
    )


@functools.partial(jax.jit, static_argnames="config")
def update_step(
    config: Config, state: TrainState, batch: Transitions
) -> tuple[TrainState, Metrics]:
    """One update of critics, actor and temperature; of the target critics on every second one.

    Observations are as the environment gives them.

    Returns the new state and scalar metrics. Raises AssertionError (chex) for arrays whose shapes
    don't fit together.
    """
    chex.assert_rank([batch.observations, batch.actions], 2)
    chex.assert_equal_shape([batch.observations, batch.next_observations])
    chex.assert_equal_shape([batch.actions[:, 0], batch.rewards, batch.terminations])
    key, next_key, actor_key = jax.random.split(state.key, 3)
    state, critic_metrics = _update_critics(config, state, batch, next_key)
    state, actor_metrics = _update_actor(config, state, batch.observations, actor_key)
    step = state.step + 1
    # A rate of 0 leaves the targets as they are, to the bit.
    tau = jnp.where(step % config.target_interval == 0, state.tau, 0.0)
    target_critic_params = optax.incremental_update(
        state.critics.params, state.target_critic_params, tau
    )
    state = state.replace(key=key, step=step, target_critic_params=target_critic_params)
    return state, critic_metrics | actor_metrics


@functools.partial(jax.jit, static_argnames="config")
def explore(
    config: Config, state: TrainState, key: jax.Array, observations: jax.Array
) -> jax.Array:
    """Actions drawn from the policy, `[..., action_dim]`, at `[..., observation_dim]`."""
    return _sample_actions(config, state.actor.params, key, observations)[0]


@functools.partial(jax.jit, static_argnames="config")
def act(config: Config, state: TrainState, observations: jax.Array) -> jax.Array:
    """The policy's mean action tanh(mean), `[..., action_dim]`, at `[..., observation_dim]`."""
    return jnp.tanh(_action_distribution(config, state.actor.params, observations)[0])


def td_target(
    rewards: jax.Array,
    terminations: jax.Array,
    next_q: jax.Array,
    next_log_probs: jax.Array,
    discount: jax.Array | float,
    temperature: jax.Array | float,
) -> jax.Array:
    """Reward plus gamma (min_i Q_target_i(s', a') - alpha log pi(a'|s')), and at an end the reward.

    rewards, terminations, next_log_probs: `[batch]`; next_q: `[critics, batch]`. Returns `[batch]`.
    """
    chex.assert_rank([rewards, next_q], [1, 2])
    chex.assert_equal_shape([rewards, terminations, next_log_probs, next_q[0]])
    next_values = jnp.min(next_q, axis=0) - temperature * next_log_probs
    return rewards + discount * (1 - terminations) * next_values


def critic_loss(q: jax.Array, target: jax.Array) -> jax.Array:
    """Mean squared error of each critic, summed over critics: `[critics, batch]` and `[batch]`."""
    chex.assert_rank([q, target], [2, 1])
    chex.assert_equal_shape([q[0], target])
    return jnp.sum(jnp.mean(jnp.square(q - target), axis=1))


def temperature_loss(
    log_temperature: jax.Array, log_probs: jax.Array, target_entropy: float
) -> jax.Array:
    """Mean of alpha (-log pi - target entropy), BPref's form; `appo` has that of SAC's authors.

    log_temperature: scalar; log_probs: `[batch]`, no gradient. Returns a scalar.
    """
    chex.assert_rank([log_temperature, log_probs], [0, 1])
    return jnp.exp(log_temperature) * jax.lax.stop_gradient(-jnp.mean(log_probs) - target_entropy)


def log_std_of(output: jax.Array, low: float, high: float) -> jax.Array:
    """The actor's second output, any number, mapped into (low, high) by a tanh; 0 to the middle."""
    return low + 0.5 * (high - low) * (jnp.tanh(output) + 1)


def _update_critics(
    config: Config, state: TrainState, batch: Transitions, key: jax.Array
) -> tuple[TrainState, Metrics]:
    critic = _network(config, 1)
    next_actions, next_log_probs = _sample_actions(
        config, state.actor.params, key, batch.next_observations
    )
    next_inputs = state_action(batch.next_observations, next_actions)
    target = td_target(
        batch.rewards,
        batch.terminations,
        forward_ensemble(critic, state.target_critic_params, next_inputs)[..., 0],
        next_log_probs,
        state.discount,
        jnp.exp(state.log_temperature.params),
    )
    inputs = state_action(batch.observations, batch.actions)

    def loss(critic_params: Params) -> tuple[jax.Array, jax.Array]:
        q = forward_ensemble(critic, critic_params, inputs)[..., 0]
        return critic_loss(q, target), jnp.mean(q)

    (loss_value, q_mean), grads = jax.value_and_grad(loss, has_aux=True)(state.critics.params)
    critics = state.critics.step(grads, optax.adam(config.critic_learning_rate))
    return state.replace(critics=critics), {"critic/loss": loss_value, "critic/q_mean": q_mean}


def _update_actor(
    config: Config, state: TrainState, observations: jax.Array, key: jax.Array
) -> tuple[TrainState, Metrics]:
    def loss(actor_params: Params) -> tuple[jax.Array, jax.Array]:
        actions, log_probs = _sample_actions(config, actor_params, key, observations)
        inputs = state_action(observations, actions)
        q = forward_ensemble(_network(config, 1), state.critics.params, inputs)[..., 0]
        # Not `jnp.min`: its gradient looks for the least among values that XLA may have computed
        # anew and rounded otherwise; where none is equal, 0 / 0 follows.
        least = functools.reduce(jnp.minimum, q)
        temperature = jnp.exp(state.log_temperature.params)
        return losses.actor_loss(log_probs, least, temperature), log_probs

    (loss_value, log_probs), grads = jax.value_and_grad(loss, has_aux=True)(state.actor.params)
    target_entropy = -float(_action_dim(state.actor.params))
    grad = jax.grad(temperature_loss)(state.log_temperature.params, log_probs, target_entropy)
    metrics = {
        "actor/loss": loss_value,
        "actor/entropy": -jnp.mean(log_probs),
        "temperature/alpha": jnp.exp(state.log_temperature.params),
    }
    state = state.replace(
        actor=state.actor.step(grads, optax.adam(config.actor_learning_rate)),
        log_temperature=state.log_temperature.step(
            grad, optax.adam(config.temperature_learning_rate)
        ),
    )
    return state, metrics


def _sample_actions(
    config: Config, actor_params: Params, key: jax.Array, observations: jax.Array
) -> tuple[jax.Array, jax.Array]:
    mean, log_std = _action_distribution(config, actor_params, observations)
    return squashed_gaussian(mean, log_std, jax.random.normal(key, mean.shape))


def _action_distribution(
    config: Config, actor_params: Params, observations: jax.Array
) -> tuple[jax.Array, jax.Array]:
    network = _network(config, 2 * _action_dim(actor_params))
    mean, output = jnp.split(forward(network, actor_params, observations), 2, axis=-1)
    return mean, log_std_of(output, config.log_std_min, config.log_std_max)


def _action_dim(actor_params: Params) -> int:
    return actor_params["params"]["output"]["bias"].shape[-1] // 2


def _network(config: Config, output_dim: int) -> MLP:
    return MLP(config.hidden_layers, config.hidden_dim, output_dim, 0.0, orthogonal_gain=1.0)
