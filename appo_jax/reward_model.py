"""The reward model r_hat: an ensemble of networks fitted to preferences (Algorithm 4, line 2).

As in LiRE's code, which the paper says it follows: each member has its own Adam and its own order
of the same labelled pairs, a segment scores the sum of its steps' tanh outputs, and the learning
rate decays in steps. Every state-action pair of the data set is then relabelled with the members'
mean, scaled to [0, 1] over the data set.
"""

import dataclasses
import functools
from typing import Literal

import jax
import jax.numpy as jnp
import optax
from flax import struct

from appo_jax import losses
from appo_jax.networks import MLP, Params, forward, forward_ensemble, state_action
from appo_jax.types import LabelledPairs, Metrics, Store, View

_RELABEL_ROWS = 8192  # rows of one relabelling step: bounds the memory of the activations


@dataclasses.dataclass(frozen=True)
class Config:
    """What shapes the program. Defaults are LiRE's, which the paper follows.

    hidden_layers, hidden_dim, negative_slope: of each member. ensemble_size: members.
    learning_rate: Adam's, multiplied by decay_rate every decay_epochs epochs.
    num_epochs, batch_size: passes over the pairs, pairs of one update.
    reward_scale: "minmax" scales r_hat to [0, 1] over the data set, "raw" keeps the mean tanh.
    """

    hidden_layers: int = 2
    hidden_dim: int = 128
    negative_slope: float = 0.01
    ensemble_size: int = 3
    learning_rate: float = 1e-3
    decay_rate: float = 0.9
    decay_epochs: int = 10
    num_epochs: int = 300
    batch_size: int = 512
    reward_scale: Literal["minmax", "raw"] = "minmax"


class TrainState(struct.PyTreeNode):
    """Parameters and Adam state with a leading axis of members, the key, updates done.

    updates_per_epoch: int32; it turns `step` into an epoch for the decay of the learning rate.
    """

    params: Params
    optimiser: optax.OptState
    key: jax.Array
    step: jax.Array
    updates_per_epoch: jax.Array


class Batch(struct.PyTreeNode):
    """Labelled pairs of one update, with a leading axis of members.

    inputs: `[members, batch, 2, length, observation_dim + action_dim]`.
    labels, weights: `[members, batch]`; weight 0 marks the filling of an epoch's last batch.
    """

    inputs: jax.Array
    labels: jax.Array
    weights: jax.Array


def init(
    config: Config, key: jax.Array, observation_dim: int, action_dim: int, num_pairs: int
) -> TrainState:
    """A fresh ensemble for `num_pairs` labelled pairs."""
    init_key, state_key = jax.random.split(key)
    params = jax.vmap(_network(config).init, (0, None))(
        jax.random.split(init_key, config.ensemble_size), jnp.zeros(observation_dim + action_dim)
    )
    return TrainState(
        params=params,
        optimiser=optax.scale_by_adam().init(params),
        key=state_key,
        step=jnp.int32(0),
        updates_per_epoch=jnp.int32(_updates_per_epoch(config, num_pairs)),
    )


def num_updates(config: Config, num_pairs: int) -> int:
    """Updates of a whole fit to `num_pairs` labelled pairs."""
    return config.num_epochs * _updates_per_epoch(config, num_pairs)


def sample(config: Config, state: TrainState, store: Store, pairs: LabelledPairs) -> Batch:
    """The next batch: each member walks through its own permutation in every epoch."""
    num_pairs = len(pairs.labels)
    batch_size = min(config.batch_size, num_pairs)
    epoch = state.step // state.updates_per_epoch
    offset = state.step % state.updates_per_epoch * batch_size
    padding = _updates_per_epoch(config, num_pairs) * batch_size - num_pairs

    def member_indices(key: jax.Array) -> jax.Array:
        order = jnp.pad(jax.random.permutation(key, num_pairs), (0, padding))
        return jax.lax.dynamic_slice(order, (offset,), (batch_size,))

    keys = jax.random.split(jax.random.fold_in(state.key, epoch), config.ensemble_size)
    indices = jax.vmap(member_indices)(keys)
    rows = pairs.rows[indices][..., None] + jnp.arange(pairs.length)
    weights = jnp.float32(offset + jnp.arange(batch_size) < num_pairs)
    return Batch(
        inputs=state_action(store.observations[rows], store.actions[rows]),
        labels=pairs.labels[indices],
        weights=jnp.broadcast_to(weights, indices.shape),
    )


@functools.partial(jax.jit, static_argnames="config")
def update_step(config: Config, state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
    """One step of every member on the Bradley-Terry loss of its own batch."""

    def loss(params: Params, member: Batch) -> tuple[jax.Array, jax.Array]:
        scores = forward(_network(config), params, member.inputs)[..., 0]
        scores = jnp.tanh(scores).sum(axis=-1)
        per_pair = losses.preference_loss(scores, member.labels)
        return jnp.average(per_pair, weights=member.weights), scores

    (loss_values, scores), grads = jax.vmap(jax.value_and_grad(loss, has_aux=True))(
        state.params, batch
    )
    epoch = state.step // state.updates_per_epoch
    learning_rate = config.learning_rate * config.decay_rate ** (epoch // config.decay_epochs)
    updates, optimiser = optax.scale_by_adam().update(grads, state.optimiser)
    params = jax.tree.map(lambda leaf, update: leaf - learning_rate * update, state.params, updates)
    state = state.replace(params=params, optimiser=optimiser, step=state.step + 1)
    strict = batch.weights * (batch.labels != 0.5)
    correct = jnp.sign(scores[..., 1] - scores[..., 0]) == jnp.sign(batch.labels - 0.5)
    return state, {
        "reward/loss": loss_values.mean(),
        "reward/train_accuracy": (correct * strict).sum() / jnp.maximum(strict.sum(), 1),
        "reward/learning_rate": jnp.float32(learning_rate),
    }


def relabel(
    config: Config, state: TrainState, store: Store, view: View, num_rows: int
) -> jax.Array:
    """r_hat of the transitions of the view's data set, which has `num_rows` rows.

    `[num_rows]`, by the row at which the transition starts; 0 where none does.
    """
    padding = -num_rows % _RELABEL_ROWS

    def members_mean(rows: jax.Array) -> jax.Array:
        inputs = state_action(store.observations[rows], store.actions[rows])
        outputs = forward_ensemble(_network(config), state.params, inputs)
        return jnp.tanh(outputs[..., 0]).mean(axis=0)

    # The filling repeats the last row; its outputs are cut off.
    rows = view.first_row + jnp.minimum(jnp.arange(num_rows + padding), num_rows - 1)
    rewards = jax.lax.map(members_mean, rows.reshape(-1, _RELABEL_ROWS)).reshape(-1)[:num_rows]
    mask = _starts_transition(store, view, num_rows)
    if config.reward_scale == "minmax":
        low = jnp.min(rewards, where=mask, initial=jnp.inf)
        high = jnp.max(rewards, where=mask, initial=-jnp.inf)
        rewards = (rewards - low) / jnp.maximum(high - low, jnp.finfo(jnp.float32).tiny)
    return jnp.where(mask, rewards, 0.0)


def _starts_transition(store: Store, view: View, num_rows: int) -> jax.Array:
    index = jnp.arange(len(store.transition_rows))
    own = (index >= view.first_transition) & (index < view.first_transition + view.num_transitions)
    rows = jnp.where(own, store.transition_rows - view.first_row, num_rows)
    return jnp.zeros(num_rows, bool).at[rows].set(True, mode="drop")


def _updates_per_epoch(config: Config, num_pairs: int) -> int:
    return -(-num_pairs // min(config.batch_size, num_pairs))


def _network(config: Config) -> MLP:
    return MLP(config.hidden_layers, config.hidden_dim, 1, config.negative_slope)
