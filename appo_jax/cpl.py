"""Contrastive Preference Learning (Hejna et al. 2024): a policy from preferences, and nothing else.

    state = cpl.init(config, key, observation_dim, action_dim, bias=0.5)
    state, metrics = cpl.update_step(config, state, batch)
    action = cpl.act(config, state, observation)

What labels compare is taken to be the sum of a segment's advantages, which for the best policy of
maximum entropy are alpha log pi(a|s): so the Bradley-Terry loss trains the policy. The policy is
deterministic, a Gaussian of constant deviation, whose log pi is -|pi(s) - a|^2 up to a constant.

A run begins with behaviour cloning of both segments of all pairs. Then the optimiser starts
afresh, its rate rises linearly, and the contrastive loss takes over, which with a `bias` below 1
(lambda in the paper) counts the worse segment for less. Which phase an update belongs to follows
from the `step` of the state, and from the run's length. CPL-BC is `bias=1, bc_coefficient=1`.

Symbols to names: pi `actor`, alpha `alpha`, lambda `bias`.
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
from appo_jax.losses import is_ordered
from appo_jax.networks import MLP, Params
from appo_jax.settings import MAX_LAYERS, MAX_ROWS, MAX_UNITS, Settings, SweptSettings, setting
from appo_jax.trainable import Trainable
from appo_jax.types import Metrics, SegmentPairs, Store, View


@dataclasses.dataclass(frozen=True)
class Config(Settings):
    """What shapes the program. Defaults are the authors'.

    Differs from them: segments of 25 steps in place of 64 and runs of 250,000 updates in place of
    500,000, as the APPO paper's; the two phases are shares of the run.
    """

    hidden_layers: int = setting(2, "hidden layers of the actor (ReLU)", high=MAX_LAYERS)
    hidden_dim: int = setting(512, "units of each hidden layer", high=MAX_UNITS)
    dropout: float = setting(0.25, "share of hidden units that training drops", low=0, high=0.99)
    num_pairs: int = setting(96, "labelled pairs of one update", high=MAX_ROWS)
    segment_length: int = setting(25, "steps of a segment", of_run=True)
    num_updates: int = setting(250_000, "updates of the whole run", of_run=True)
    cloning_share: float = setting(
        0.4, "share of the run, from its start, that clones all segments", low=0, high=1
    )
    warmup_share: float = setting(
        0.02, "share of the run, after the cloning, over which the rate rises", low=0, high=1
    )


class Swept(SweptSettings):
    """The numbers that may differ between runs of one program."""

    alpha: float = setting(0.1, "alpha, an advantage's scale", above=0)
    bias: float = setting(0.5, "lambda, the share of the worse segment's advantage", low=0, high=1)
    bc_coefficient: float = setting(
        0.0, "weight of the cloning loss beside the contrastive loss", low=0
    )
    learning_rate: float = setting(1e-4, "Adam's learning rate", above=0)


class Batch(struct.PyTreeNode):
    """What one update reads. labels: `[pairs]`, probability that the second is preferred."""

    segment_pairs: SegmentPairs
    labels: jax.Array


class TrainState(struct.PyTreeNode):
    """All that training carries on, as arrays. `key` is for dropout, `step` counts updates."""

    actor: Trainable
    key: jax.Array
    step: jax.Array
    swept: Swept


def horizon(config: Config) -> int:
    """The updates of the whole run, of which the phases are shares."""
    return config.num_updates


def cloning_updates(config: Config) -> int:
    """How many updates the run's first phase has."""
    return round(config.cloning_share * config.num_updates)


def init(
    config: Config, key: jax.Array, observation_dim: int, action_dim: int, **swept: Any
) -> TrainState:
    """A fresh state.

    key: a typed PRNG key. swept: fields of `Swept` by name, numbers or (also traced) arrays.
    """
    actor_key, state_key = jax.random.split(key)
    params = _network(config, action_dim).init(actor_key, jnp.zeros(observation_dim))
    on_device = Swept(**swept).on_device()
    return TrainState(
        actor=Trainable.create(params, optax.adam(on_device.learning_rate)),
        key=state_key,
        step=jnp.int32(0),
        swept=on_device,
    )


def sample(config: Config, key: jax.Array, step: jax.Array, store: Store, view: View) -> Batch:
    """The labelled pairs of update `step`, uniform with replacement, segments whole."""
    key = jax.random.fold_in(key, step)
    rows, labels = sampling.draw_labelled_pairs(key, store, view, config.num_pairs)
    pairs = sampling.gather_segment_pairs(store, view, rows, config.segment_length)
    return Batch(segment_pairs=pairs, labels=labels)


@functools.partial(jax.jit, static_argnames="config")
def update_step(config: Config, state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
    """One update of the policy, in the phase of `state.step`.

    Returns the new state and scalar metrics; both losses are told in both phases. Raises
    AssertionError (chex) for arrays whose shapes don't fit together.
    """
    pairs, swept = batch.segment_pairs, state.swept
    key, dropout_key = jax.random.split(state.key)
    is_cloning = state.step < cloning_updates(config)

    def loss(params: Params) -> tuple[jax.Array, Metrics]:
        actions = _actions(config, params, pairs.observations[:, :, :-1], dropout_key)
        log_probs = log_prob(actions, pairs.actions)
        sums = jnp.sum(log_probs, axis=-1)
        cloning = -jnp.mean(log_probs)
        contrastive = contrastive_loss(swept.alpha * sums, batch.labels, swept.bias)
        total = jnp.where(is_cloning, cloning, contrastive + swept.bc_coefficient * cloning)
        correct, strict = is_ordered(sums[:, 1] - sums[:, 0], batch.labels)
        metrics = {
            "actor/loss": total,
            "actor/cloning_loss": cloning,
            "actor/contrastive_loss": contrastive,
            "actor/accuracy": (correct & strict).sum() / jnp.maximum(strict.sum(), 1),
        }
        return total, metrics

    grads, metrics = jax.grad(loss, has_aux=True)(state.actor.params)
    rate = learning_rate(config, state.step, swept.learning_rate)
    adam = optax.adam(rate)
    switches = state.step == cloning_updates(config)
    optimiser = jax.tree.map(
        lambda fresh, old: jnp.where(switches, fresh, old),
        adam.init(state.actor.params),
        state.actor.optimiser,
    )
    actor = state.actor.replace(optimiser=optimiser).step(grads, adam)
    metrics["actor/learning_rate"] = rate
    return state.replace(actor=actor, key=key, step=state.step + 1), metrics


@functools.partial(jax.jit, static_argnames="config")
def act(config: Config, state: TrainState, observations: jax.Array) -> jax.Array:
    """The policy's action, with all units.

    observations: `[..., observation_dim]`, normalised. Returns `[..., action_dim]` in [-1, 1].
    """
    return _actions(config, state.actor.params, observations, None)


def log_prob(policy_actions: jax.Array, actions: jax.Array) -> jax.Array:
    """-|pi(s) - a|^2, log pi(a|s) up to a constant and a scale: `[..., action_dim]` to `[...]`."""
    chex.assert_equal_shape([policy_actions, actions])
    return -jnp.sum(jnp.square(policy_actions - actions), axis=-1)


def contrastive_loss(scores: jax.Array, labels: jax.Array, bias: jax.Array | float) -> jax.Array:
    """Mean of -log sigmoid(A_better - bias A_worse), weighted by the label where it is soft.

    scores: `[pairs, 2]`, alpha times the segments' summed log pi; labels: `[pairs]`, probability
    that the second is preferred. Returns a scalar. With a bias of 1 it is the Bradley-Terry loss.
    """
    chex.assert_shape(scores, (None, 2))
    chex.assert_equal_shape([scores[:, 0], labels])
    first, second = scores[:, 0], scores[:, 1]
    return jnp.mean(
        labels * jax.nn.softplus(bias * first - second)
        + (1 - labels) * jax.nn.softplus(bias * second - first)
    )


def learning_rate(config: Config, step: jax.Array, rate: jax.Array | float) -> jax.Array:
    """Adam's rate in an update: `rate`, but below it while it rises after the cloning."""
    warmup = jnp.float32(config.warmup_share * config.num_updates)
    since = step + 1 - cloning_updates(config)
    return rate * jnp.where(since > 0, jnp.minimum(since / warmup, 1.0), 1.0)


def _actions(
    config: Config, params: Params, observations: jax.Array, dropout_key: jax.Array | None
) -> jax.Array:
    action_dim = params["params"]["output"]["bias"].shape[-1]
    return deterministic_actions(_network(config, action_dim), params, observations, dropout_key)


def _network(config: Config, output_dim: int) -> MLP:
    return MLP(
        config.hidden_layers,
        config.hidden_dim,
        output_dim,
        negative_slope=0.0,
        orthogonal_gain=1.0,
        dropout=config.dropout,
    )
