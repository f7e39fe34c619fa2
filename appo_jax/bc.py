"""Behaviour cloning, of the preferred segments or of all data: what no preference method adds to.

    state = bc.init(config, key, observation_dim, action_dim, learning_rate=3e-4)
    state, metrics = bc.update_step(config, state, batch)
    action = bc.act(config, state, observation)

A tie prefers neither segment, so none of the two is cloned; a soft label counts by how far it is
from a tie.
"""

import dataclasses
import functools
from typing import Any, Literal

import chex
import jax
import jax.numpy as jnp
import optax
from flax import struct

from appo_jax.actors import deterministic_actions
from appo_jax.data import sampling
from appo_jax.networks import MLP, Params
from appo_jax.settings import MAX_LAYERS, MAX_ROWS, MAX_UNITS, Settings, SweptSettings, setting
from appo_jax.trainable import Trainable
from appo_jax.types import Metrics, Store, Transitions, View


@dataclasses.dataclass(frozen=True)
class Config(Settings):
    """What shapes the program. The network is that of IQL's policy."""

    data: Literal["preferred", "all"] = setting(
        "preferred", "what is cloned: preferred (segments that labels prefer) or all (transitions)"
    )
    hidden_layers: int = setting(2, "hidden layers of the actor (ReLU)", high=MAX_LAYERS)
    hidden_dim: int = setting(256, "units of each hidden layer", high=MAX_UNITS)
    batch_size: int = setting(256, "transitions of one update", high=MAX_ROWS)
    segment_length: int = setting(25, "steps of a segment", of_run=True)


class Swept(SweptSettings):
    """The numbers that may differ between runs of one program."""

    learning_rate: float = setting(3e-4, "Adam's learning rate", above=0)


class Batch(struct.PyTreeNode):
    """What one update reads. weights: `[batch]`, how much each transition counts, 0 for a tie."""

    transitions: Transitions
    weights: jax.Array


class TrainState(struct.PyTreeNode):
    """All that training carries on, as arrays. `step` counts updates."""

    actor: Trainable
    step: jax.Array
    swept: Swept


def init(
    config: Config, key: jax.Array, observation_dim: int, action_dim: int, **swept: Any
) -> TrainState:
    """A fresh state.

    key: a typed PRNG key. swept: fields of `Swept` by name, numbers or (also traced) arrays.
    """
    params = _network(config, action_dim).init(key, jnp.zeros(observation_dim))
    on_device = Swept(**swept).on_device()
    return TrainState(
        actor=Trainable.create(params, optax.adam(on_device.learning_rate)),
        step=jnp.int32(0),
        swept=on_device,
    )


def sample(config: Config, key: jax.Array, step: jax.Array, store: Store, view: View) -> Batch:
    """The data of update `step`, uniform with replacement: over transitions, or pairs and steps.

    Raises InputError for longer preferred segments than the store's.
    """
    pair_key, step_key = jax.random.split(jax.random.fold_in(key, step))
    if config.data == "all":
        rows = sampling.draw_transition_rows(pair_key, store, view, config.batch_size)
        weights = jnp.ones(config.batch_size)
    else:
        sampling.check_segment_length(store, config.segment_length)
        pairs, labels = sampling.draw_labelled_pairs(pair_key, store, view, config.batch_size)
        preferred = jnp.where(labels > 0.5, pairs[:, 1], pairs[:, 0])
        steps = jax.random.randint(step_key, (config.batch_size,), 0, config.segment_length)
        rows = preferred + steps
        weights = jnp.abs(2 * labels - 1)
    return Batch(transitions=sampling.gather_transitions(store, view, rows), weights=weights)


@functools.partial(jax.jit, static_argnames="config")
def update_step(config: Config, state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
    """One update of the policy.

    Returns the new state and scalar metrics. Raises AssertionError (chex) for arrays whose shapes
    don't fit together.
    """

    def loss(params: Params) -> jax.Array:
        actions = _actions(config, params, batch.transitions.observations)
        return cloning_loss(actions, batch.transitions.actions, batch.weights)

    loss_value, grads = jax.value_and_grad(loss)(state.actor.params)
    actor = state.actor.step(grads, optax.adam(state.swept.learning_rate))
    return state.replace(actor=actor, step=state.step + 1), {"actor/loss": loss_value}


@functools.partial(jax.jit, static_argnames="config")
def act(config: Config, state: TrainState, observations: jax.Array) -> jax.Array:
    """The policy's action.

    observations: `[..., observation_dim]`, normalised. Returns `[..., action_dim]` in [-1, 1].
    """
    return _actions(config, state.actor.params, observations)


def cloning_loss(policy_actions: jax.Array, actions: jax.Array, weights: jax.Array) -> jax.Array:
    """Weighted mean of |pi(s) - a|^2; 0 where all weights are.

    policy_actions, actions: `[batch, action_dim]`; weights: `[batch]`. Returns a scalar.
    """
    chex.assert_rank([actions, weights], [2, 1])
    chex.assert_equal_shape([policy_actions, actions])
    chex.assert_equal_shape([actions[:, 0], weights])
    errors = jnp.sum(jnp.square(policy_actions - actions), axis=-1)
    return jnp.sum(weights * errors) / jnp.maximum(jnp.sum(weights), jnp.finfo(jnp.float32).tiny)


def _actions(config: Config, params: Params, observations: jax.Array) -> jax.Array:
    action_dim = params["params"]["output"]["bias"].shape[-1]
    return deterministic_actions(_network(config, action_dim), params, observations)


def _network(config: Config, output_dim: int) -> MLP:
    return MLP(config.hidden_layers, config.hidden_dim, output_dim, negative_slope=0.0)
