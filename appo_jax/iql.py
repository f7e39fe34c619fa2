"""Implicit Q-learning (Kostrikov et al. 2022) on whatever rewards the store holds, as LiRE has it.

    state = iql.init(config, key, observation_dim, action_dim, expectile=0.7)
    state, metrics = iql.update_step(config, state, batch)
    action = iql.act(config, state, observation)

On a learned reward it is the paper's MR, on the true one its Oracle. The two published versions
differ in more than style; `variant` picks one:

- `lire` (LiRE's code, which the paper's rows come from): every loss reads the V from before the
  update; the critics' loss is the mean of two squared errors; PyTorch's initialisation; the log
  standard deviation is -20 or more.
- `jax` (the authors' code): V first, and policy and critics read the new one; the sum of the two
  squared errors; orthogonal initialisation with gain sqrt(2); the log standard deviation is -5 or
  more.

Symbols to names: Q `critics`, Q-hat `target_critic_params`, V `value`, pi `actor`, tau `expectile`,
beta `temperature` (a multiplier), alpha `tau` (Polyak's rate).
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Literal

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
from appo_jax.types import Metrics, SegmentPairs, Store, Transitions, View

NUM_CRITICS = 2
_LOG_STD_MIN = {"lire": -20.0, "jax": -5.0}
_LOG_STD_MAX = 2.0


@dataclasses.dataclass(frozen=True)
class Config(Settings):
    """What shapes the program. Defaults are LiRE's."""

    variant: Literal["lire", "jax"] = setting(
        "lire", "whose IQL: lire (LiRE's code, as the APPO paper) or jax (its authors' JAX code)"
    )
    hidden_layers: int = setting(
        2, "hidden layers of critics, value network and actor (ReLU)", high=MAX_LAYERS
    )
    hidden_dim: int = setting(256, "units of each hidden layer", high=MAX_UNITS)
    batch_size: int = setting(256, "transitions of one update", high=MAX_ROWS)
    critic_learning_rate: float = setting(3e-4, "Adam's rate of the critics", above=0)
    value_learning_rate: float = setting(3e-4, "Adam's rate of the value network", above=0)
    actor_learning_rate: float = setting(3e-4, "Adam's rate of the actor, at the start", above=0)
    actor_schedule: Literal["cosine", "constant"] = setting(
        "cosine", "of the actor's rate: cosine (to 0 over the whole run) or constant"
    )
    num_updates: int = setting(250_000, "updates of the whole run", of_run=True)
    follow_terminations: bool = setting(
        False,
        "a termination ends the sum of future rewards; LiRE ignores them, as Meta-World has none",
        with_terminations=True,
    )


class Swept(SweptSettings):
    """The numbers that may differ between runs of one program."""

    expectile: float = setting(0.7, "tau of the expectile regression of V", above=0, high=1)
    temperature: float = setting(3.0, "beta, the advantage's factor in the policy's weights", low=0)
    discount: float = setting(0.99, "gamma", low=0, high=1)
    tau: float = setting(0.005, "Polyak rate of the target critics", above=0, high=1)


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


def horizon(config: Config) -> int | None:
    """The updates over which the actor's rate falls to 0, None for a constant one."""
    return config.num_updates if config.actor_schedule == "cosine" else None


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
        actor=Trainable.create(actor_params, _actor_optimiser(config)),
        critics=Trainable.create(critic_params, optax.adam(config.critic_learning_rate)),
        # A copy: a state whose leaves share a buffer can't be donated.
        target_critic_params=jax.tree.map(jnp.copy, critic_params),
        value=Trainable.create(value_params, optax.adam(config.value_learning_rate)),
        step=jnp.int32(0),
        swept=Swept(**swept).on_device(),
    )


def sample(
    config: Config, key: jax.Array, step: jax.Array, store: Store, view: View
) -> Transitions:
    """The data of update `step`, uniform with replacement."""
    key = jax.random.fold_in(key, step)
    rows = sampling.draw_transition_rows(key, store, view, config.batch_size)
    return sampling.gather_transitions(store, view, rows)


@functools.partial(jax.jit, static_argnames="config")
def update_step(
    config: Config, state: TrainState, batch: Transitions
) -> tuple[TrainState, Metrics]:
    """One update of V, critics, target critics and policy.

    Returns the new state and scalar metrics. Raises AssertionError (chex) for arrays whose shapes
    don't fit together.
    """
    chex.assert_rank([batch.observations, batch.actions], 2)
    chex.assert_equal_shape([batch.observations, batch.next_observations])
    chex.assert_equal_shape([batch.actions[:, 0], batch.rewards, batch.terminations])
    return update_with(functools.partial(_update_critics, config, batch), config, state, batch)


def update_with(
    update_critics: Callable[[TrainState, Params], tuple[TrainState, Metrics]],
    config: Config,
    state: TrainState,
    batch: Transitions,
) -> tuple[TrainState, Metrics]:
    """The same update with other critics' losses; of the batch it reads observations and actions.

    update_critics: from the state and the parameters of the V that critics read, to the state after
    their step and its metrics.
    """
    before = state.value.params
    inputs = state_action(batch.observations, batch.actions)
    target_q = jnp.min(q_values(config, state.target_critic_params, inputs), axis=0)
    state, advantages, value_metrics = _update_value(config, state, batch.observations, target_q)
    value_params = before
    if config.variant == "jax":
        value_params = state.value.params
        advantages = target_q - values(config, value_params, batch.observations)
    state, critic_metrics = update_critics(state, value_params)
    state, actor_metrics = _update_actor(config, state, batch, advantages)
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
    """The return that Q and V imply: sum_l of Q(s_l, a_l) - gamma V(s_{l+1}).

    The mean of both critics, `[pairs, 2]`.
    """
    inputs = state_action(segments.observations[:, :, :-1], segments.actions)
    q = jnp.mean(q_values(config, state.critics.params, inputs), axis=0)
    next_values = values(config, state.value.params, segments.observations[:, :, 1:])
    discounts = step_discounts(config, state, segments.terminations)
    return losses.implied_returns(q, next_values, discounts, segments.is_step)


def q_values(config: Config, params: Params, inputs: jax.Array) -> jax.Array:
    """Both critics' Q of `state_action` inputs `[..., dim]`, `[critics, ...]`."""
    return forward_ensemble(_network(config, 1), params, inputs)[..., 0]


def values(config: Config, params: Params, observations: jax.Array) -> jax.Array:
    """V of observations `[..., observation_dim]`, `[...]`."""
    return forward(_network(config, 1), params, observations)[..., 0]


def step_discounts(config: Config, state: TrainState, terminations: jax.Array) -> jax.Array:
    """Gamma, or 0 where a followed termination is, in the shape of `terminations`."""
    ends = terminations if config.follow_terminations else jnp.zeros_like(terminations)
    return state.swept.discount * (1 - ends)


def adam(
    rate: float, schedule: Literal["cosine", "constant"], num_updates: int
) -> optax.GradientTransformation:
    """Adam, its rate constant or falling to 0 over the whole run along a cosine."""
    if schedule == "constant":
        return optax.adam(rate)
    return optax.adam(optax.cosine_decay_schedule(rate, num_updates))


def td_target(
    rewards: jax.Array, next_values: jax.Array, discounts: jax.Array | float
) -> jax.Array:
    """Reward plus gamma V(s'), `[batch]`; discounts are 0 where a followed termination is."""
    chex.assert_equal_shape([rewards, next_values])
    return rewards + discounts * next_values


def _update_value(
    config: Config, state: TrainState, observations: jax.Array, target_q: jax.Array
) -> tuple[TrainState, jax.Array, Metrics]:
    """Also returns the advantages, of the V from before the update."""

    def loss(params: Params) -> tuple[jax.Array, jax.Array]:
        advantages = target_q - values(config, params, observations)
        return losses.expectile_loss(advantages, state.swept.expectile), advantages

    (loss_value, advantages), grads = jax.value_and_grad(loss, has_aux=True)(state.value.params)
    value = state.value.step(grads, optax.adam(config.value_learning_rate))
    metrics = {"value/loss": loss_value, "value/v_mean": jnp.mean(target_q - advantages)}
    return state.replace(value=value), advantages, metrics


def _update_critics(
    config: Config, batch: Transitions, state: TrainState, value_params: Params
) -> tuple[TrainState, Metrics]:
    inputs = state_action(batch.observations, batch.actions)
    next_values = values(config, value_params, batch.next_observations)
    discounts = step_discounts(config, state, batch.terminations)
    target = td_target(batch.rewards, next_values, discounts)
    over_critics = jnp.mean if config.variant == "lire" else jnp.sum

    def loss(params: Params) -> tuple[jax.Array, jax.Array]:
        q = q_values(config, params, inputs)
        return over_critics(jnp.mean(jnp.square(q - target), axis=1)), jnp.mean(q)

    (loss_value, q_mean), grads = jax.value_and_grad(loss, has_aux=True)(state.critics.params)
    critics = state.critics.step(grads, optax.adam(config.critic_learning_rate))
    return state.replace(critics=critics), {"critic/loss": loss_value, "critic/q_mean": q_mean}


def _update_actor(
    config: Config, state: TrainState, batch: Transitions, advantages: jax.Array
) -> tuple[TrainState, Metrics]:
    weights = losses.advantage_weights(advantages, state.swept.temperature)

    def loss(params: Params) -> jax.Array:
        mean = _mean(config, params, batch.observations)
        log_std = jnp.clip(params["log_std"], _LOG_STD_MIN[config.variant], _LOG_STD_MAX)
        return losses.weighted_cloning_loss(
            gaussian_log_prob(mean, log_std, batch.actions), weights
        )

    loss_value, grads = jax.value_and_grad(loss)(state.actor.params)
    metrics = {
        "actor/loss": loss_value,
        "actor/advantage_mean": jnp.mean(advantages),
        "actor/weight_mean": jnp.mean(weights),
    }
    return state.replace(actor=state.actor.step(grads, _actor_optimiser(config))), metrics


def _mean(config: Config, params: Params, observations: jax.Array) -> jax.Array:
    network = _network(config, params["log_std"].shape[-1])
    return deterministic_actions(network, params["mean"], observations)


def _actor_optimiser(config: Config) -> optax.GradientTransformation:
    return adam(config.actor_learning_rate, config.actor_schedule, config.num_updates)


def _network(config: Config, output_dim: int) -> MLP:
    gain = None if config.variant == "lire" else 2**0.5
    return MLP(config.hidden_layers, config.hidden_dim, output_dim, 0.0, orthogonal_gain=gain)
