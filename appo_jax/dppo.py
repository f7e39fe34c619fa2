"""DPPO, direct preference-based policy optimisation without reward modelling (An et al. 2023).

    state = dppo.init(config, key, observation_dim, action_dim, lam=0.5)
    state, metrics = dppo.update_step(config, state, batch)
    action = dppo.act(config, state, observation)

The policy comes closer to windows of the data that score high than to those that score low. Scores
are those of `preference_predictor`, which stands for them in the store as the reward of the step
that ends a window; only their order counts.

Symbols to names: d `window_distance`, lambda `lam`, T `temperature`.
"""

import dataclasses
import functools
from typing import Any

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
from appo_jax.types import Metrics, Store, View


@dataclasses.dataclass(frozen=True)
class Config(Settings):
    """What shapes the program. Defaults are those of DPPO's code.

    Differs from the code: windows of 25 steps, as the APPO paper's, and a lambda (`Swept`) of 0.5
    in place of 1, with which nothing holds the policy near the data.
    """

    hidden_layers: int = setting(2, "hidden layers of the policy (ReLU)", high=MAX_LAYERS)
    hidden_dim: int = setting(256, "units of each hidden layer", high=MAX_UNITS)
    batch_size: int = setting(
        256, "windows of one update, compared in all pairs", low=2, high=MAX_ROWS
    )
    segment_length: int = setting(25, "steps of a window", of_run=True)
    learning_rate: float = setting(3e-4, "Adam's learning rate", above=0)


class Swept(SweptSettings):
    """The numbers that may differ between runs of one program."""

    lam: float = setting(0.5, "lambda, how much the worse window of a pair pushes away", low=0)
    temperature: float = setting(0.1, "T, the distance that makes a difference", above=0)


class Batch(struct.PyTreeNode):
    """Whole windows: observations, actions `[batch, length, dim]`, scores `[batch]`."""

    observations: jax.Array
    actions: jax.Array
    scores: jax.Array


class TrainState(struct.PyTreeNode):
    """The policy; `step` counts updates."""

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
    return TrainState(
        actor=Trainable.create(params, optax.adam(config.learning_rate)),
        step=jnp.int32(0),
        swept=Swept(**swept).on_device(),
    )


def sample(config: Config, key: jax.Array, step: jax.Array, store: Store, view: View) -> Batch:
    """The windows of update `step`, uniform with replacement.

    Raises InputError for longer windows than the store's segments.
    """
    sampling.check_segment_length(store, config.segment_length)
    key = jax.random.fold_in(key, step)
    rows = sampling.draw_segment_rows(key, store, view, (config.batch_size,))
    steps = rows[:, None] + jnp.arange(config.segment_length)
    last = steps[:, -1]
    return Batch(
        observations=store.observations[steps],
        actions=store.actions[steps],
        scores=store.rewards[view.first_reward + last - view.first_row],
    )


@functools.partial(jax.jit, static_argnames="config")
def update_step(config: Config, state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
    """One step of the policy on the loss of all pairs of the batch's windows.

    Returns the new state and scalar metrics. Raises AssertionError (chex) for arrays whose shapes
    don't fit together.
    """

    def loss(params: Params) -> tuple[jax.Array, jax.Array]:
        distances = window_distance(_predict(config, params, batch.observations), batch.actions)
        lam, temperature = state.swept.lam, state.swept.temperature
        return pair_loss(distances, batch.scores, lam, temperature), distances

    (loss_value, distances), grads = jax.value_and_grad(loss, has_aux=True)(state.actor.params)
    actor = state.actor.step(grads, optax.adam(config.learning_rate))
    metrics = {"actor/loss": loss_value, "actor/distance": jnp.mean(distances)}
    return state.replace(actor=actor, step=state.step + 1), metrics


@functools.partial(jax.jit, static_argnames="config")
def act(config: Config, state: TrainState, observations: jax.Array) -> jax.Array:
    """The policy's action.

    observations: `[..., observation_dim]`, normalised. Returns `[..., action_dim]` in [-1, 1].
    """
    return _predict(config, state.actor.params, observations)


def window_distance(predicted: jax.Array, actions: jax.Array) -> jax.Array:
    """d: mean over a window's steps of |pi(s) - a| / 2, the Euclidean norm.

    predicted, actions: `[..., length, action_dim]`. Returns `[...]`, from 0 to the root of
    action_dim. The gradient is 0, not NaN, where an action is met exactly.
    """
    chex.assert_equal_shape([predicted, actions])
    squares = jnp.sum(jnp.square((predicted - actions) / 2), axis=-1)
    is_met = squares == 0
    norms = jnp.where(is_met, 0.0, jnp.sqrt(jnp.where(is_met, 1.0, squares)))
    return jnp.mean(norms, axis=-1)


def pair_loss(
    distances: jax.Array,
    scores: jax.Array,
    lam: jax.Array | float,
    temperature: jax.Array | float,
) -> jax.Array:
    """Mean of softplus((d_i - lambda d_j) / T) over the pairs in which i scores higher than j.

    distances, scores: `[batch]`. Returns a scalar; 0 where all scores are equal.

    Differs from the code, which takes one of two equal scores for the higher: such a pair, as one
    of a window with itself, is left out.
    """
    chex.assert_rank([distances, scores], 1)
    chex.assert_equal_shape([distances, scores])
    is_better = scores[:, None] > scores
    losses = jax.nn.softplus((distances[:, None] - lam * distances) / temperature)
    num_pairs = jnp.maximum(jnp.sum(is_better), 1)
    return jnp.sum(losses, where=is_better) / num_pairs


def _predict(config: Config, params: Params, observations: jax.Array) -> jax.Array:
    action_dim = params["params"]["output"]["bias"].shape[-1]
    return deterministic_actions(_network(config, action_dim), params, observations)


def _network(config: Config, action_dim: int) -> MLP:
    depth, width = config.hidden_layers, config.hidden_dim
    return MLP(depth, width, action_dim, 0.0, orthogonal_gain=2**0.5)
